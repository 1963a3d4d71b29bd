"""`sasl.jaas.config`: a login module and its options, as Java's clients take them."""

from __future__ import annotations

import re

from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import Password

_JAAS = re.compile(
    r"""\s* (?P<module>[\w.$]+) \s+ (?:required|requisite|sufficient|optional)
        (?P<options> (?: \s+ [\w.]+ \s*=\s* (?: "(?:[^"\\]|\\.)*" | [^\s";]+ ) )* ) \s* ; \s*""",
    re.VERBOSE | re.IGNORECASE,
)
_OPTION = re.compile(r"""([\w.]+) \s*=\s* (?: "((?:[^"\\]|\\.)*)" | ([^\s";]+) )""", re.VERBOSE)


def read_jaas(config: Password, mechanism: str, module: str, expected: str) -> dict[str, str]:
    """The options of the login module.

    Args:
        module: the class that the mechanism needs, without its package.
        expected: what the config should look like.

    Raises:
        UsageError: it is not of JAAS's form, or names another module.
    """
    found = _JAAS.fullmatch(config.text)
    if found is None:
        raise UsageError(f"sasl.jaas.config=[hidden] cannot be read; expected: {expected}")
    if found["module"].rpartition(".")[2] != module:
        raise UsageError(
            f"sasl.jaas.config names {found['module']}, but sasl.mechanism={mechanism} needs"
            f" {module}; expected: {expected}"
        )
    return {
        name: re.sub(r"\\(.)", r"\1", quoted) or bare
        for name, quoted, bare in _OPTION.findall(found["options"])
    }


def parse_jaas_config(config: Password, mechanism: str) -> tuple[str, Password]:
    """User and password, for PLAIN and SCRAM.

    Raises:
        UsageError: as `read_jaas`, or one of them is missing.
    """
    module = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
    expected = (
        f"org.apache.kafka.common.security.{'plain' if mechanism == 'PLAIN' else 'scram'}"
        f'.{module} required username="…" password="…";'
    )
    given = read_jaas(config, mechanism, module, expected)
    unknown = given.keys() - {"username", "password", "serviceName"}
    if unknown or "username" not in given or "password" not in given:
        wrong = f"{', '.join(sorted(unknown))} is not for trimtab" if unknown else "one is missing"
        raise UsageError(f"sasl.jaas.config needs username and password ({wrong}): {expected}")
    return given["username"], Password(given["password"])
