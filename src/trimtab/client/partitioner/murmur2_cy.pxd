# C declarations of murmur2_cy.py, used as kafka/wire/batch_cy.pxd explains.

cpdef unsigned int murmur2(bytes key)
cpdef int partition_for_key(bytes key, int partition_count)
cdef unsigned int murmur2_of_octets(
    const unsigned char *octets, Py_ssize_t start, Py_ssize_t size
) noexcept
