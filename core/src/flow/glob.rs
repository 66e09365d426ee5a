//! Patterns with `*` and `?`.

/// True when `text` matches `pattern`, in which `*` stands for any characters, none too, and `?` for one.
/// Takes at most `pattern` times `text` steps, for both may come from strangers.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // Where to take up again, with one more character given to the last `*`.
    let mut retry = None;
    loop {
        let mut rest = pattern.clone();
        match (rest.next(), text.clone().next()) {
            (Some('*'), _) => {
                retry = Some((rest.clone(), text.clone()));
                pattern = rest;
            }
            (Some(wanted), Some(found)) if wanted == '?' || wanted == found => {
                pattern = rest;
                text.next();
            }
            (None, None) => return true,
            _ => {
                let Some((after_star, given)) = &mut retry else { return false };
                if given.next().is_none() {
                    return false;
                }
                pattern = after_star.clone();
                text = given.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stars_take_any_characters_and_question_marks_one() {
        for (pattern, text) in [("*.deb", "a.deb"), ("*", ""), ("a?c*", "abc"), ("*a*b", "aaabab"), ("", "")]
        {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("*.deb", "a.deb.sig"), ("?", ""), ("a?c", "ac"), ("*a*b", "ba"), ("", "a")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    /// The definition, at any cost.
    fn defined(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|taken| defined(rest, &text[taken..])),
            Some((wanted, rest)) => text
                .split_first()
                .is_some_and(|(found, text)| (*wanted == '?' || wanted == found) && defined(rest, text)),
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_its_definition(pattern in "[ab*?]{0,6}", text in "[ab*é]{0,8}") {
            let characters = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&pattern, &text), defined(&characters(&pattern), &characters(&text)));
        }
    }
}
