"""A coverage-guided fuzzer of everything that opens a file. See README.md in this folder.

    pip install -e '.[fuzz]'
    python tests/fuzz/fuzz_open.py CORPUS... [libFuzzer's options]
"""

import os
import random
import shlex
import sys
import tempfile
import warnings

import atheris

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [ROOT, os.path.join(ROOT, "tests")]
warnings.simplefilter("ignore")

with atheris.instrument_imports(include=["mmapdict"]):
    import mmapdict                     # noqa: F401
    from mmapdict import cli            # noqa: F401  all other modules

from fuzz import canary, exercise, mutators     # noqa: E402

SCRATCH = os.environ.get("MMAPDICT_FUZZ_FOLDER")        # where files are written; a tmpfs is best


def main():
    folder = tempfile.mkdtemp(dir=SCRATCH)
    path = os.path.join(folder, "file")
    seeds = exercise.make_seeds(folder)
    files = [seeds[name] for name in sorted(seeds)]
    exercise.Watch(folder)
    exercise.limit_memory(2 * exercise.MEMORY)

    def one_input(data):
        canary.armed[0] = True
        try:
            if data.startswith(exercise.VALUE):
                exercise.exercise_value(data[len(exercise.VALUE):])
            else:
                exercise.overwrite(path, data)
                exercise.exercise(path, forged=True)
        finally:
            canary.armed[0] = False

    def mutate(data, max_size, seed):
        rng = random.Random(seed)
        if rng.random() < 0.2:
            return atheris.Mutate(data, max_size)
        if data.startswith(exercise.VALUE):
            ops = data[len(exercise.VALUE):]
            for _ in range(rng.choice([1, 1, 2, 4])):
                ops, _ = mutators.change_ops(ops, rng)
            made = exercise.VALUE + ops
        elif rng.random() < 0.3:
            made = exercise.VALUE + mutators.mutate_value(rng, files)
        elif len(data) < mutators.HEADER_SIZE:
            made = rng.choice(files)
        else:
            made = mutators.mutate(data, rng, files).data
        return made if len(made) <= max_size else data[:max_size]

    # -merge and -fork start the program anew, by a shell.
    program = shlex.join([sys.executable, os.path.abspath(__file__)])
    atheris.Setup([program, *sys.argv[1:]], one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
