"""
Reads C and C++ sources for the rules about the tree: their tokens, comments and functions, and
which file calls which.

It looks at each file alone, without expanding macros: a macro's name is a token, its body belongs
to no function.
"""

import os
import re
import subprocess

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<raw>R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)")
    |(?P<text>(?:u8|u|U|L)?"(?:\\.|[^"\\])*"|(?:u8|u|U|L)?'(?:\\.|[^'\\\n])+')
    |(?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign>\.\.\.|<<=|>>=|->\*?|\+\+|--|<<|>>|[<>=!+\-*/%&|^]=|&&|\|\||\#\#|::|[^\s\\])""",
    re.X | re.S,
)
BRANCHES = {"if", "for", "while", "case", "catch", "&&", "||", "?"}
NOT_CALLS = {
    "if",
    "for",
    "while",
    "switch",
    "return",
    "sizeof",
    "defined",
    "__attribute__",
    "alignof",
    "_Alignof",
}
SUFFIXES = (".c", ".h", ".cc", ".cpp", ".cu")


class Token:
    """A word, number, string or sign, with the line that it begins in; directive: it belongs to a
    line that begins with #."""

    def __init__(self, text, line, directive):
        self.text, self.line, self.directive = text, line, directive


class Function:
    """tokens counts from the first word of the declaration to the closing brace; complexity is
    McCabe's: 1 and the branches."""

    def __init__(self, file, head, first_line):
        self.file, self.line = file, first_line
        self.tokens, self.complexity = len(head), 1
        self.last_line = first_line
        self.static = any(t.text == "static" for t in head)
        self.calls = set()
        self.name, self.parameters = signature(head)


def skip_group(tokens, at):
    """The place after the parenthesis that closes the one at `at`."""
    depth = 0
    while at < len(tokens):
        depth += {"(": 1, ")": -1}.get(tokens[at].text, 0)
        at += 1
        if depth == 0:
            break
    return at


def signature(head):
    """The name and the number of parameters that a declaration gives, or None and 0 if it is not
    one of a function."""
    at = 0
    while at < len(head):
        if head[at].text == "(" and at > 0 and re.match(r"[A-Za-z_]", head[at - 1].text):
            name, end = head[at - 1].text, skip_group(head, at)
            arguments = split(head[at + 1 : end - 1])
            if name.isupper() and end == len(head):
                return named_by_macro(name, arguments)
            if not name.isupper() and name != "alignas" and not name.startswith("__"):
                return name, len(arguments)
            at = end  # an attribute, or a macro for the type
            continue
        at += 1
    return None, 0


def split(tokens):
    """The arguments or parameters between a pair of parentheses; none for (void)."""
    if not tokens or [t.text for t in tokens] == ["void"]:
        return []
    depth, parts = 0, [[]]
    for token in tokens:
        depth += {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1}.get(
            token.text, 0
        )
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def named_by_macro(macro, arguments):
    """TEST(Suite, Name) or CALL(type, name, (parameters))."""
    words = [part[0].text for part in arguments if len(part) == 1]
    has_list = arguments and arguments[-1] and arguments[-1][0].text == "("
    parameters = arguments[-1][1:-1] if has_list else []
    if macro.startswith("TEST"):
        return ".".join(words), 0
    return (words[-1] if words else macro), len(split(parameters))


def is_macro_alone(head):
    """A macro at the place of a declaration that needs no semicolon after it."""
    texts = [token.text for token in head]
    return (
        len(head) > 2
        and texts[0].isupper()
        and texts[1] == "("
        and skip_group(head, 1) == len(head)
        and texts.count("(") == texts.count(")")
    )


class Source:
    """One file. `path` is below the tree's root."""

    def __init__(self, root, path):
        self.path = path
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            self.text = file.read()
        self.lines = (
            self.text.split("\n")[:-1] if self.text.endswith("\n") else self.text.split("\n")
        )
        self.tokens, self.comments = [], []
        self._lex()
        self.functions = list(Parser(self).functions())

    def _lex(self):
        line, at, directive_line = 1, 0, None
        for match in TOKEN.finditer(self.text):
            between = self.text[at : match.start()]
            line += between.count("\n")
            if directive_line is not None and "\n" in between.replace("\\\n", ""):
                directive_line = None
            text = match.group()
            if match.lastgroup == "comment":
                self.comments.append((line, text))
            else:
                first = self.text.rfind("\n", 0, match.start()) + 1
                if text == "#" and not self.text[first : match.start()].strip():
                    directive_line = line
                self.tokens.append(Token(text, line, directive_line is not None))
            line += text.count("\n")
            at = match.end()

    def includes(self):
        return re.findall(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', self.text, re.M)


class Parser:
    """Finds the functions of a file by its braces. Of #if and #else both count, and the braces go
    on as after the #if."""

    def __init__(self, source):
        self.source = source
        self.head = []  # since the last ; or brace outside functions
        # What each open brace is: "scope" (struct, namespace), "skip" (initializer), or a Function.
        self.scopes = []
        self.branches = []  # of #if: the open braces at its begin

    def functions(self):
        tokens = self.source.tokens
        for at, token in enumerate(tokens):
            if token.directive:
                if token.text == "#" and at + 1 < len(tokens):
                    self._directive(tokens[at + 1].text)
                continue
            inner = next((s for s in self.scopes if isinstance(s, Function)), None)
            if inner:
                self._count(inner, token, tokens[at + 1] if at + 1 < len(tokens) else None)
            if token.text == "{":
                opened = inner and "skip" or self._open()
                self.scopes.append(opened)
            elif token.text == "}":
                closed = self.scopes.pop() if self.scopes else None
                if isinstance(closed, Function):
                    yield closed
                if closed != "initializer":
                    self.head = []
            elif token.text == ";" and not inner:
                self.head = []
            elif not inner and "initializer" not in self.scopes:
                if is_macro_alone(self.head) and token.line > self.head[-1].line:
                    self.head = []
                self.head.append(token)

    def _directive(self, word):
        if word in ("if", "ifdef", "ifndef"):
            self.branches.append(list(self.scopes))
        elif word in ("else", "elif") and self.branches:
            self.scopes = list(self.branches[-1])
        elif word == "endif" and self.branches:
            self.branches.pop()

    def _open(self):
        head, words = self.head, [t.text for t in self.head]
        depth, assigned = 0, False
        for at, word in enumerate(words):
            depth += {"(": 1, ")": -1}.get(word, 0)
            assigned |= word == "=" and depth == 0 and words[at - 1] != "operator"
        name, _ = signature(head)
        is_member = (
            name and ":" in words and words[-1] not in (")", "const", "override", "noexcept")
        )
        if assigned or is_member or (words and words[0] == "enum" and not name):
            return "initializer"
        if not name:
            self.head = []
            return "scope"
        function = Function(self.source.path, head, head[0].line)
        function.tokens += 1
        self.head = []
        return function

    @staticmethod
    def _count(function, token, after):
        function.tokens += 1
        function.last_line = token.line
        function.complexity += token.text in BRANCHES
        if (
            after
            and after.text == "("
            and (re.match(r"[A-Za-z_]", token.text) and token.text not in NOT_CALLS)
        ):
            function.calls.add(token.text)


def tree_files(root):
    """All files of the tree: git's where it has them, else what lies there."""
    try:
        listed = subprocess.run(
            ["git", "-C", root, "ls-files", "-z"], capture_output=True, check=True, text=True
        ).stdout
        files = [f for f in listed.split("\0") if f and os.path.isfile(os.path.join(root, f))]
    except (OSError, subprocess.CalledProcessError):
        files = []
    if files:
        return sorted(files)
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith((".git", "build", "autom4te"))]
        files += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(files)


def sources(root, folders, suffixes=SUFFIXES):
    """The sources in these folders of the tree, whether git knows them or not."""
    found = []
    for top in folders:
        for folder, _, names in os.walk(os.path.join(root, top)):
            found += [
                os.path.relpath(os.path.join(folder, n), root)
                for n in names
                if n.endswith(suffixes)
            ]
    return [Source(root, path) for path in sorted(found)]


def call_graph(files):
    """{caller's path: {callee's path: {functions}}} between different files."""
    defined = {}
    for source in files:
        for function in source.functions:
            if not function.static or source.path.endswith(".h"):
                defined.setdefault(function.name, set()).add(source.path)
    graph = {source.path: {} for source in files}
    for source in files:
        own = {f.name for f in source.functions}
        for function in source.functions:
            for name in function.calls - own:
                for path in defined.get(name, ()):
                    graph[source.path].setdefault(path, set()).add(name)
    return graph


def cycles(graph):
    """The sets of more than one node that all reach each other, largest first (Tarjan's
    algorithm)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return sorted((c for c in found if len(c) > 1), key=len, reverse=True)
