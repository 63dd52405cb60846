# terminal.bash - for tests with parts that need a terminal, or the name localhost. If this machine has none, the part
# is skipped, and a test that is otherwise successful ends as skipped, with the reason:
#   if has_terminal; then on_terminal "command" > tty.txt; fi
#   finish $wrong
left_out=
leave_out() { left_out=${left_out:+$left_out; }$*; return 1; }

on_terminal() { TERM=xterm script -qec "$1" /dev/null; }
has_terminal() {
    command -v script > /dev/null || leave_out "no script(1) to create a terminal" || return
    on_terminal true < /dev/null > /dev/null 2>&1 || leave_out "cannot create a terminal: is /dev/pts mounted?"
}
has_localhost() {
    getent ahosts localhost > /dev/null || leave_out "the name localhost does not resolve: is it in /etc/hosts?"
}

finish() { # STATUS
    [ "$1" != 0 ] || [ -z "$left_out" ] || { echo "skipped: $left_out; the rest passed"; exit 77; }
    exit "$1"
}
