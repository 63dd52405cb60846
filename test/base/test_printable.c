/* test_printable.c - text for a terminal: controls are escaped, other text is unchanged, truncation is at a character
 * boundary. */
#include "check.h"

#include <lockstep/context.h>
#include <string.h>

static void expect_text(const char *text, const char *wanted)
{
    char   out[256];
    size_t length = lk_printable(text, out, sizeof out);
    CHECK(strcmp(out, wanted) == 0 && length == strlen(wanted), "\"%s\", not \"%s\"", out, wanted);
}

static void controls_are_escaped_and_other_text_is_kept(void)
{
    expect_text("", "");
    expect_text("runs/first: 3 × 32, naïve, 文字, 🙂 \\ \"q\"",
                "runs/first: 3 × 32, naïve, 文字, 🙂 \\ \"q\"");
    expect_text("a\033[31mb\a\x7f", "a\\x1b[31mb\\x07\\x7f");
    expect_text("one\ntwo\rthree\t", "one\\ntwo\\rthree\\t");
    expect_text("\xc2\x9b"
                "31m \xc2\xa0",
                "\\xc2\\x9b31m \xc2\xa0"); /* CSI as one character of C1; no-break space */
    expect_text("\x9b \xff", "\\x9b \\xff");
    expect_text("\xc0\x9b \xe0\x80\x9b \xed\xa0\x80",
                "\\xc0\\x9b \\xe0\\x80\\x9b \\xed\\xa0\\x80");                   /* overlong; surrogate */
    expect_text("\xf4\x90\x80\x80 \xe6\x96", "\\xf4\\x90\\x80\\x80 \\xe6\\x96"); /* above U+10FFFF; cut short */
}

static void long_text_is_truncated_at_a_character(void)
{
    char out[8] = "???????";
    CHECK(lk_printable("ab\033", out, 6) == 6 && strcmp(out, "ab") == 0, "%s", out);
    CHECK(lk_printable("ab\033", out, 7) == 6 && strcmp(out, "ab\\x1b") == 0, "%s", out);
    CHECK(lk_printable("a文b", out, 4) == 5 && strcmp(out, "a") == 0, "%s", out);
    CHECK(lk_printable("a文b", out, 5) == 5 && strcmp(out, "a文") == 0, "%s", out);
    CHECK(lk_printable("a", out, 1) == 1 && out[0] == 0);
    CHECK(lk_printable("abc", NULL, 0) == 3);
}

int main(void)
{
    RUN(controls_are_escaped_and_other_text_is_kept);
    RUN(long_text_is_truncated_at_a_character);
    return check_result();
}
