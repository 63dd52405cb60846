#!/usr/bin/env python3
"""wrap.py [--check] [FILE...] - wraps lines of more than 120 columns: comments of C, CUDA and C++, of shell, CMake and
Python, paragraphs of Markdown, and commands of shell scripts. Without FILE all files of the tree. With --check it
changes nothing, lists what is too long and exits 1 if there is any.

Only a comment, paragraph or command with a line that is too long changes. Tables, code blocks, drawings (lines that are
indented further), URLs and what has no place to break stay. A shell script is changed only if bash reads the same
commands from it as before. Code of C is clang-format's part (cmake/format.sh): run it after this."""
import os
import re
import subprocess
import sys

WIDTH = 120
SOURCES = (".c", ".h", ".cu", ".cpp")
HASHED = (".sh", ".bash", ".py", ".cmake", ".txt", "/x", "/.ci/run")
SHELLS = (".sh", ".bash", "/x", "/.ci/run")
SKIPPED = re.compile(r"^(test/(golden|fuzz/corpus|headers/[0-9.]+)/|test/extend/.*\.patch$|LICENSE|docs/.*\.svg)")


def fill(words, first, rest, last=""):
    """Lines of at most WIDTH columns: the first begins with `first`, the others with `rest`; `last` follows the last
    word."""
    lines, line = [], first
    for i, word in enumerate(words):
        room = WIDTH - (len(last) if i == len(words) - 1 else 0)
        begun = line not in (first, rest) or (line == first and lines == [] and i > 0)
        if begun and len(line) + 1 + len(word) > room:
            lines.append(line)
            line = rest + word
        else:
            line += (" " if begun else "") + word
    lines.append(line + last)
    return lines


def split_words(text, atoms):
    """Words of `text`; what `atoms` matches is one word, blanks and all."""
    words, at = [], 0
    for token in re.finditer(r"(?:%s|\S)+" % atoms, text):
        words.append(token.group(0))
        at = token.end()
    return words


# ---- comments ----

CTEST = r"ctest: .*$"  # how a test is run: one line, whatever its length


def fill_comment(paragraph, first, rest, last=""):
    return fill(split_words(" ".join(paragraph), CTEST), first, rest, last)


def wrap_hash_comments(lines):
    """Comments of # that stand alone. Neighbours of the same indent are one paragraph; a line that is indented behind
    the # is a drawing."""
    out, i, here = [], 0, None
    while i < len(lines):
        if here is not None:  # the text of a here document
            out.append(lines[i])
            if lines[i].strip() == here:
                here = None
            i += 1
            continue
        word = re.search(r"<<-?\s*['\"\\]?([A-Za-z_]+)['\"]?", lines[i])
        if word and not lines[i].lstrip().startswith("#"):
            here = word.group(1)
        start = re.match(r"(\s*# )\S", lines[i])
        if not start or re.match(r"\s*# (shellcheck|vim|pylint)", lines[i]) or lines[i].startswith("#!"):
            out.append(lines[i])
            i += 1
            continue
        prefix, block = start.group(1), []
        same = re.compile(r"(?!\s*# shellcheck)" + re.escape(prefix) + r"\S")
        while i < len(lines) and same.match(lines[i]):
            block.append(lines[i])
            i += 1
            if "ctest: " in block[-1] or (i < len(lines) and re.match(r"\s*# ctest: ", lines[i])):
                break
        if any(len(line) > WIDTH for line in block):
            block = fill_comment([line[len(prefix):] for line in block], prefix, prefix)
        out += block
    return out


def wrap_c_comments(lines):
    out, i = [], 0
    while i < len(lines):
        start = re.match(r"(\s*)/\*( ?)\S", lines[i])
        if not start or lines[i].rstrip().endswith("\\"):
            out += [lines[i]] if ends_macro(lines, i) else move_trailing(lines[i])
            i += 1
            continue
        end = i
        while end < len(lines) and "*/" not in lines[end]:
            end += 1
        block = lines[i:end + 1]
        i = end + 1
        alone = end < len(lines) and block[-1].rstrip().endswith("*/") and block[-1].count("*/") == 1
        if alone and any(len(line) > WIDTH for line in block) and not block[0].rstrip().endswith("\\"):
            block = wrap_block(block, start.group(1))
        out += block
    return out


def wrap_block(block, indent):
    """One /* … */ on lines of its own, paragraph by paragraph."""
    text = [block[0].strip()[2:]]
    text += [re.sub(r"^\s*\*(?!/) ?|^\s*(?=\*/)", " ", line, count=1)[0:] for line in block[1:]]
    text[-1] = re.sub(r"\s*\*/\s*$", "", text[-1])
    tail_alone = text[-1].strip() == ""
    if tail_alone and len(text) > 1:
        text.pop()
    out, paragraph, opened = [], [], False

    def flush(last):
        nonlocal opened
        if paragraph:
            out.extend(fill_comment(paragraph, indent + ("/* " if not opened else " * "), indent + " * ", last))
            opened = True
            paragraph.clear()

    for n, line in enumerate(text):
        body = line[1:] if line.startswith(" ") else line
        drawn = body.startswith((" ", "\t")) or re.match(r"(-|\d+\.|\*) ", body) or "----" in body
        if body.strip() == "" or drawn:
            flush("")
            out.append((indent + ("/*" if not opened else " *") + (" " + body if body.strip() else "")).rstrip())
            opened = True
        else:
            paragraph.append(body.strip())
    if paragraph:
        flush(" */")
    elif len(out[-1]) + 3 <= WIDTH:
        out[-1] += " */"
    else:
        out.append(indent + " */")
    return out


def ends_macro(lines, i):
    """Line i is the last of a macro of several lines: a line above it would have to end in a backslash."""
    return i > 0 and lines[i - 1].rstrip().endswith("\\")


def move_trailing(line):
    """A comment behind code that makes the line too long goes above it."""
    if len(line) <= WIDTH or line.rstrip().endswith("\\"):
        return [line]
    match = re.match(r"^(\s*)(\S.*?)\s*/\* (.*) \*/\s*$", line)
    if not match or "/*" in match.group(3) or match.group(2).count('"') % 2 or "*/" in match.group(2):
        return [line]
    indent, code, text = match.groups()
    row = code.startswith(("{", "LK_", "X("))
    if code.startswith(("}", "else", "case ", "default:")) or code.endswith(("(", ",")) and not row:
        return [line]
    return fill_comment([text], indent + "/* ", indent + " * ", " */") + [indent + code]


# ---- Markdown ----

SPANS = r"`[^`]+`|\]\([^)]*\)|\[[^]]*\]\[[^]]*\]"
MARK = re.compile(r"^([-+*>#|=]+|\d+[.)])$")  # would begin a list, a heading or a quotation at the beginning of a line


def fill_markdown(text, first, rest):
    words = []
    for word in split_words(text, SPANS):
        if words and MARK.match(word):
            words[-1] += " " + word
        else:
            words.append(word)
    return fill(words, first, rest)


def wrap_markdown(lines):
    out, i, fence = [], 0, None
    while i < len(lines):
        line = lines[i]
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark or fence:
            if mark:
                fence = None if fence else mark.group(1)
            out.append(line)
            i += 1
            continue
        kept = re.match(r"\s*([|#<]|\[[^]]+\]:|={3,}|-{3,})|    \s*\S", line) and not re.match(r"\s*[-*+] ", line)
        if not line.strip() or kept:
            out.append(line)
            i += 1
            continue
        item = re.match(r"(\s*(?:[-*+]|\d+[.)])\s+|\s*)", line).group(1)
        rest = " " * len(item)
        block = [line]
        i += 1
        while i < len(lines) and lines[i].strip() and not re.match(r"\s*([-*+]\s|\d+[.)]\s|[|#<>]|```|~~~)", lines[i]):
            block.append(lines[i])
            i += 1
        broken = any(b.endswith(("  ", "\\")) for b in block)
        if any(len(b) > WIDTH for b in block) and not broken:
            block = fill_markdown(" ".join([block[0][len(item):]] + [b.strip() for b in block[1:]]), item, rest)
        out += block
    return out


# ---- commands of shell ----

def break_places(line):
    """Places in a line of shell, outside of quotes, substitutions and brackets, where it may continue on the next:
    (place, text at the end of the line)."""
    places, quote, depth, i = [], None, 0, 0
    while i < len(line):
        c = line[i]
        if c == "\\":
            i += 2
            continue
        if quote == "'":
            quote = None if c == "'" else quote
        elif c == "'" and quote is None:
            quote = "'"
        elif c == '"':
            if quote == '"' and depth == 0:
                quote = None
            elif quote is None:
                quote = '"'
            elif depth:
                pass  # nested quotes in $( ) of a string: no breaks there
        elif line.startswith(("$(", "`", "$((", "${", "[[", "((")) or c in "({":
            if line.startswith(("$(", "${")):
                i += 1
            depth += 1
        elif c in ")}" or line.startswith("]]", i):
            depth -= 1
        elif c == "#" and quote is None and depth == 0 and i and line[i - 1] == " ":
            break
        if quote is None and depth == 0 and c == " " and line[:i].strip():
            before = line[:i].rstrip()
            places.append((i, "" if before.endswith(("&&", "||", " |")) else " \\"))
        i += 1
    return places


def wrap_shell_line(line):
    indent = re.match(r"\s*", line).group(0)
    out = []
    while len(line) > WIDTH:
        fits = [(place, end) for place, end in break_places(line)
                if place + len(end) <= WIDTH and place > len(indent) + 20]
        if not fits:
            break
        operators = [fit for fit in fits if fit[1] == ""]
        place, end = operators[-1] if operators and operators[-1][0] > WIDTH // 3 else fits[-1]
        out.append(line[:place].rstrip() + end)
        line = indent + "    " + line[place:].lstrip()
    return out + [line]


def wrap_cmake(lines):
    """Arguments of commands: CMake reads a new line as it reads a blank, outside of quotes."""
    out = []
    for line in lines:
        indent = re.match(r"\s*", line).group(0)
        while len(line) > WIDTH and not line.lstrip().startswith("#"):
            quoted, depth, place = False, 0, None
            for i, c in enumerate(line):
                if c == '"' and line[i - 1] != "\\":
                    quoted = not quoted
                elif not quoted and c == "#":
                    break
                depth += 0 if quoted else (c == "(") - (c == ")")
                fits = c == " " and not quoted and len(indent) + 8 < i <= WIDTH
                if fits and (depth or out and not line.lstrip()[0].isalpha()):
                    place = i
            if place is None:
                break
            out.append(line[:place].rstrip())
            line = indent + "    " + line[place:].lstrip()
        out.append(line)
    return out


def read_commands(text):
    """What bash reads: the functions of `text` as one function, printed in its own form; None if it is not valid."""
    script = 'eval "wrapped() {\n$1\n}" && declare -f wrapped'
    shown = subprocess.run(["bash", "-c", script, "wrap", text], capture_output=True, text=True)
    return shown.stdout if shown.returncode == 0 else None


def wrap_shell(lines):
    """Line by line: each is kept if bash reads the same commands."""
    before = read_commands("\n".join(lines))
    if before is None:
        return lines
    for i in range(len(lines) - 1, -1, -1):
        if len(lines[i]) <= WIDTH or lines[i].lstrip().startswith("#"):
            continue
        changed = lines[:i] + wrap_shell_line(lines[i]) + lines[i + 1:]
        if changed != lines and read_commands("\n".join(changed)) == before:
            lines = changed
    return lines


# ---- files ----

def wrap(path, text):
    lines = text.split("\n")
    name = "/" + path
    if path.endswith(".md"):
        lines = wrap_markdown(lines)
    elif path.endswith(SOURCES):
        lines = wrap_c_comments(lines)
    elif name.endswith(HASHED):
        lines = wrap_hash_comments(lines)
        if path.endswith((".cmake", "CMakeLists.txt")):
            lines = wrap_cmake(lines)
        if name.endswith(SHELLS) or text.startswith("#!/bin/sh"):
            lines = wrap_shell(lines)
    return "\n".join(lines)


def too_long(path, text):
    """Numbers of lines that are too long and need not be: tables, URLs, stored values and single words are exempt."""
    numbers, fence = [], False
    for number, line in enumerate(text.split("\n"), 1):
        if path.endswith(".md") and re.match(r"\s*(```|~~~)", line):
            fence = not fence
        if len(line) <= WIDTH or "http://" in line or "https://" in line:
            continue
        if path.endswith(".md") and (fence or line.lstrip().startswith("|")):
            continue
        if path.endswith(SOURCES) and line.rstrip().endswith("\\"):
            continue  # tables in macros
        numbers.append(number)
    return numbers


def list_files():
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    kinds = SOURCES + HASHED + (".md",)
    return [f for f in files if ("/" + f).endswith(kinds) and not SKIPPED.match(f) and os.path.isfile(f)]


def main(arguments):
    check = "--check" in arguments
    files = [a for a in arguments if a != "--check"] or list_files()
    bad = 0
    for path in files:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if check:
            for number in too_long(path, text):
                print(f"{path}:{number}: more than {WIDTH} columns")
                bad = 1
            continue
        wrapped = text if len(max(text.split("\n"), key=len)) <= WIDTH else wrap(path, text)
        if wrapped != text:
            with open(path, "w", encoding="utf-8") as file:
                file.write(wrapped)
            print(f"wrapped {path}")
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
