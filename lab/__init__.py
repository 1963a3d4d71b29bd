"""What measures and tests trimtab, and is not in the package that users install.

reliability/  random faults, and checkers that nothing acknowledged is lost: `make sim`
benchmarks/   trimtab beside its rivals: `make bench`, `make figures`
experiments/  the measurements of KIP-480, KIP-794 and KIP-1123 again: `trimtab experiment`
demo/         ten partitioners on real flight data: `make demo`
drawing.py    their pictures; output.py: durations and tables as text
processes.py  a cluster whose nodes are processes, measured from outside
"""
