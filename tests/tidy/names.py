"""
Complains about comments and pages that name a file or a function that does not exist. usage:
names.py DIR

A file is a word such as exec.c, core/exec.c or docs/membership.md: it exists if some file of the
tree has that path or ends so. A function is a word such as ft_op_move, sleep_held() or
ftcclAllReduce: it exists if that word stands in the tree outside comments.
"""

import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import source  # noqa: E402

FILE = re.compile(
    r"(?<![\w./<*-])(?:[\w-]+/)*[\w-]+\.(?:cc|cpp|cu|c|h|md|py|sh|pml|frag|map)(?![\w/(*-]|\.\w)"
)
FUNCTION = re.compile(
    r"(?<!\w)(ft_[a-z0-9_]*[a-z0-9](?![\w.])|p?ftccl[A-Z][a-z]\w*|[a-z]+_\w+(?=\(\)))"
)
FOLDERS = ("src", "tools", "perf", "tests", "examples", "include")
# What the build makes, what others have, and what stands for any name.
ELSEWHERE = {
    "config.h",
    "cuda.h",
    "cuda_runtime.h",
    "folder/folder.h",
    "tests/fuzz/fuzz_x.c",
    "prog.c",
    "program.c",
    "train.py",
    "INCLUDEDIR/ftccl/nccl.h",
}


def scripts(root):
    """Scripts and programs in other languages: [(path, text)]; their comments begin with #."""
    for path in source.tree_files(root):
        if path.startswith("perf/results/") or not path.startswith(FOLDERS + ("scripts",)):
            continue
        with open(os.path.join(root, path), "rb") as file:
            text = file.read()
        if path.endswith((".sh", ".py")) or text.startswith(b"#!"):
            yield path, text.decode("utf-8", "replace")


def script_comments(text):
    for number, line in enumerate(text.split("\n"), 1):
        match = re.search(r"(?:^|\s)#(?!!)(.*)", line)
        if match:
            yield number, match.group(1)


def pages(root):
    """What users and engineers read, but for decisions, which tell how things were."""
    for path in source.tree_files(root):
        if path == "README.md" or re.match(r"docs/[^/]*\.md$|man/", path):
            with open(os.path.join(root, path), encoding="utf-8") as file:
                yield path, file.read()


class Tree:
    """What there is: the ends of all paths, and the words of code."""

    def __init__(self, root):
        files = source.sources(root, FOLDERS)
        self.ends, self.words, self.said = set(ELSEWHERE), set(), []
        for path in {*source.tree_files(root), *(file.path for file in files)}:
            parts = path.split("/")
            self.ends.update("/".join(parts[i:]) for i in range(len(parts)))
        for file in files:
            for token in file.tokens:
                self.words.update(re.findall(r"\w+", token.text))
            self.said += [(file.path, line, text) for line, text in file.comments]
        for path, text in scripts(root):
            self.words.update(re.findall(r"\w+", re.sub(r"(?m)(?:^|\s)#.*$", "", text)))
            self.said += [(path, line, comment) for line, comment in script_comments(text)]
        self.said += [(path, 1, text) for path, text in pages(root)]

    def faults(self):
        for path, first, text in self.said:
            for kind, pattern, known in (
                ("file", FILE, self.ends),
                ("function", FUNCTION, self.words),
            ):
                for match in pattern.finditer(text):
                    if match.group() not in known:
                        line = first + text.count(chr(10), 0, match.start())
                        yield f"{path}:{line}: there is no {kind} {match.group()}"


def main(root):
    faults = sorted(Tree(root).faults())
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
