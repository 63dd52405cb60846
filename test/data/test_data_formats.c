/* test_data_formats.c - the registry of data formats: what help, completion and the checks of options read. */
#include "check.h"

#include <lockstep/data_format.h>
#include <stdio.h>
#include <string.h>

static void every_format_is_found_by_its_name_and_its_form(void)
{
    int count = 0;
    for (; lk_data_format_at(count); count++) {
        const lk_data_format *format = lk_data_format_at(count);
        size_t                length = strlen(format->name);
        CHECK(lk_data_format_find(format->name) == format);
        CHECK(strncmp(format->form, format->name, length) == 0);
        CHECK(format->form[length] == ':' || format->form[length] == '[');
        char name[64];
        snprintf(name, sizeof name, "%s:some/file,other", format->name);
        CHECK(lk_data_format_find(name) == format);
        snprintf(name, sizeof name, "%sx", format->name);
        CHECK(lk_data_format_find(name) != format);
    }
    CHECK(count >= 14);
    CHECK(!lk_data_format_at(-1));
    CHECK(!lk_data_format_find("") && !lk_data_format_find(NULL) && !lk_data_format_find("no-such:x"));
}

static void options_are_whole_words(void)
{
    const lk_data_format *csv = lk_data_format_find("csv"), *text = lk_data_format_find("text:input.txt");
    CHECK(lk_data_format_uses(csv, "label", false) && lk_data_format_uses(csv, "header", false));
    CHECK(!lk_data_format_uses(csv, "head", false) && !lk_data_format_uses(csv, "eader", false));
    CHECK(!lk_data_format_uses(csv, "size", false) && !lk_data_format_uses(csv, "", false));
    CHECK(!lk_data_format_uses(text, "text-field", false) && lk_data_format_uses(text, "text-field", true));
    CHECK(!lk_data_format_uses(lk_data_format_find("synthetic"), "label", true));
}

/* What a plan uses without the files is what the files hold: the sizes that are published. */
static void public_sets_have_published_sizes(void)
{
    for (int i = 0; lk_data_format_at(i); i++) {
        const lk_data_format *format = lk_data_format_at(i);
        bool                  published = format->traits & LK_DATA_PUBLIC;
        CHECK((format->samples[0] > 0) == published && (format->samples[1] > 0) == published);
        CHECK((format->image[0] > 0) == published && (format->classes > 0) == published);
    }
}

int main(void)
{
    RUN(every_format_is_found_by_its_name_and_its_form);
    RUN(options_are_whole_words);
    RUN(public_sets_have_published_sizes);
    return check_result();
}
