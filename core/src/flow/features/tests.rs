use proptest::prelude::*;

use super::*;
use crate::mphttp::http::HeadLimits;

fn get(path: &str, fields: &str) -> RequestHead {
    let text = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    RequestHead::parse(text.as_bytes(), HeadLimits::default()).unwrap().unwrap().0
}

fn error(text: &str) -> String {
    FeatureDatabase::parse(text).unwrap_err().to_string()
}

#[test]
fn the_built_in_rules_split_large_kinds_early_and_all_else_from_a_megabyte() {
    let database = FeatureDatabase::built_in();
    let decided = |path| database.decide(&get(path, ""), "h").action;
    let split = |minimum_size, open_all_paths_at_once| Action::Split { minimum_size, open_all_paths_at_once };
    assert_eq!(decided("/pool/main/a_1.DEB"), split(256_000, true));
    assert_eq!(decided("/linux.tar.xz?mirror=1"), split(256_000, true));
    assert_eq!(decided("/debian.iso"), split(256_000, true));
    assert_eq!(decided("/"), split(1_000_000, false));
    assert_eq!(decided("/x?name=a.iso"), split(1_000_000, false));
}

#[test]
fn the_example_in_the_documentation_is_valid() {
    let source = include_str!("../features.rs");
    let lines = source.lines().filter_map(|line| line.strip_prefix("//!")).map(str::trim);
    let example: Vec<_> =
        lines.skip_while(|line| *line != "```toml").skip(1).take_while(|line| *line != "```").collect();
    assert_eq!(FeatureDatabase::parse(&example.join("\n")).unwrap().len(), 2);
}

#[test]
fn the_first_rule_that_matches_in_all_its_parts_decides() {
    let database = FeatureDatabase::parse(
        r#"
        [[rule]]
        name = "video"
        host = "*.Example.org"
        path = "/v/*"
        header = { name = "accept", contains = "Video/" }
        action = "split"
        minimum_size = 5
        [[rule]]
        name = "no"
        host = "*.example.org"
        action = "pass"
        "#,
    )
    .unwrap();
    let rule = |path, fields, host| database.decide(&get(path, fields), host).rule;
    let accept = "Accept: text/x, video/mp4\r\n";
    assert_eq!(rule("/v/1", accept, "cdn.example.ORG").as_deref(), Some("video"));
    assert_eq!(rule("/v/1", "", "cdn.example.org").as_deref(), Some("no"));
    assert_eq!(rule("/w/1", accept, "cdn.example.org").as_deref(), Some("no"));
    assert_eq!(rule("/v/1", accept, "example.org"), None);
    let joined = database.followed_by(FeatureDatabase::built_in());
    assert_eq!(joined.decide(&get("/", ""), "example.org").rule.as_deref(), Some("everything else"));
}

#[test]
fn errors_name_the_line_and_the_rule() {
    let rule = "\n[[rule]]\nname = \"a\"\naction = \"pass\"\n[[rule]]\nname = \"b\"\n";
    assert_eq!(
        error(&format!("{rule}action = \"split\"\nminimum_size = \"1 parsec\"")),
        "line 8: rule \"b\": invalid value: string \"1 parsec\", expected a size such as \"256KB\", \"1MiB\" \
         or a number of bytes"
    );
    assert!(
        error(&format!("{rule}action = \"drop\"")).starts_with("line 7: rule \"b\": unknown variant `drop`")
    );
    assert!(
        error(&format!("{rule}action = \"pass\"\nfoo = 1")).starts_with("line 8: rule \"b\": unknown field")
    );
    assert!(error(rule).starts_with("line 5: rule \"b\": missing field `action`"), "{}", error(rule));
    assert!(error(&format!("{rule}action = ")).starts_with("line 7: rule \"b\": "));
    assert_eq!(
        error(&format!("{rule}action = \"pass\"\nminimum_size = 1")),
        "line 5: rule \"b\": `minimum_size` and `open_all_paths_at_once` are for `action = \"split\"`"
    );
    assert_eq!(
        error(&format!("{rule}action = \"dns-answer\"")),
        "line 5: rule \"b\": `action = \"dns-answer\"` needs `answer`"
    );
    assert!(error("\n[[rule]]\naction = \"pass\"").starts_with("line 2: rule 1: missing field `name`"));
    assert!(error("x = 1").starts_with("line 1: unknown field"));
    let twice = "[[rule]]\nname = \"a\"\naction = \"pass\"\n";
    assert_eq!(error(&twice.repeat(2)), "line 4: rule \"a\": another rule has this name");
}

#[test]
fn sizes_have_decimal_and_binary_units() {
    let sizes = ["7", "256KB", "1 MB", "2GiB", "1KiB", "0b"].map(parse_size);
    assert_eq!(sizes, [Some(7), Some(256_000), Some(1_000_000), Some(2 << 30), Some(1024), Some(0)]);
    for bad in ["", "KB", "-1", "1.5MB", "1XB", "99999999999999999999", "18446744073709551615KB"] {
        assert_eq!(parse_size(bad), None, "{bad}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "[[rule]]", "\n", "name", " = ", "\"a\"", "action", "\"split\"", "\"dns-answer\"", "answer", "{", "}", "é",
            "minimum_size", "\"1MB\"", "-1", "[", "]", ",", "format", "\"json\"", "addresses", "extensions", "\"", "#",
        ]), 0..30),
    ) {
        let text = pieces.concat();
        if let Err(error) = FeatureDatabase::parse(&text) {
            prop_assert!(error.line >= 1 && error.line <= text.lines().count() + 1);
        }
    }
}
