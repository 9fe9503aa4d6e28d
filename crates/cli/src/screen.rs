//! Output of commands: lines and JSON on standard output, errors on standard error.
//!
//! Keys, reasons and payloads come from other people, and may hold anything. All output goes through here, where
//! characters that control a terminal become visible, long lines are wrapped, and colours are for terminals only.

use std::borrow::Cow;
use std::fmt::{Arguments, Display, Write as _};
use std::io::{ErrorKind, IsTerminal, Write as _};

use serde::Serialize;
use terminal_size::{Width, terminal_size_of};
use unicode_width::UnicodeWidthStr;

/// The columns of a terminal that does not report its width.
const DEFAULT_COLUMNS: usize = 80;
/// Lines are not wrapped to fewer columns than these.
const MIN_COLUMNS: usize = 20;
/// The column at which the texts of fields begin.
const FIELD: usize = 14;

/// The meaning of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tint {
    /// A heading.
    Heading,
    /// A problem.
    Wrong,
    /// Something that an operator should look at.
    Notable,
}

impl Tint {
    /// `text` between escape sequences.
    pub fn dye(self, text: &str) -> String {
        let code = match self {
            Tint::Heading => "1",
            Tint::Wrong => "31",
            Tint::Notable => "33",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Prints a line, wrapped to the terminal's columns. Further lines are indented below the text of the first.
pub fn line(words: Arguments<'_>) {
    put(None, &words.to_string());
}

/// Prints a line as [`line()`] does, in a colour.
pub fn tinted(tint: Tint, words: Arguments<'_>) {
    put(Some(tint), &words.to_string());
}

/// Prints a name and its text, in columns of their own.
pub fn field(name: &str, text: &str) {
    let name = visible(name);
    lay(None, &format!("  {name:<11} {}", visible(text.trim_end())), FIELD);
}

/// Prints a line as it is: for JSON, and for text to copy from the screen.
pub fn exact(words: Arguments<'_>) {
    if let Err(error) = super::progress::aside(|| writeln!(std::io::stdout(), "{words}")) {
        if error.kind() != ErrorKind::BrokenPipe {
            eprintln!("error: failed to write to standard output: {error}");
        }
        // The output is not complete.
        std::process::exit(1);
    }
}

/// Prints a value as JSON, on one line.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    exact(format_args!("{}", tame_json(&serde_json::to_string(value)?)));
    Ok(())
}

/// Prints the result of a command: an object for programs, or words.
pub fn told(as_json: bool, object: &impl Serialize, words: impl Display) -> anyhow::Result<()> {
    if as_json {
        return json(object);
    }
    line(format_args!("{words}"));
    Ok(())
}

/// Prints on standard error why the program fails.
pub fn error(words: &str) {
    let label = if colourful(&std::io::stderr()) { Tint::Wrong.dye("error:") } else { "error:".into() };
    let lines: Vec<Cow<'_, str>> = words.split('\n').map(visible).collect();
    eprintln!("{label} {}", lines.join("\n"));
}

/// Prints a note on standard error.
pub fn note(words: Arguments<'_>) {
    super::progress::aside(|| eprintln!("{}", visible(&words.to_string())));
}

/// Whether a stream gets colours: not with NO_COLOR.
pub fn colourful(stream: &impl IsTerminal) -> bool {
    let no = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !no && !dumb
}

/// The columns of standard output; nothing if it is not a terminal, which has no limit.
pub fn columns() -> Option<usize> {
    let stdout = std::io::stdout();
    stdout
        .is_terminal()
        .then(|| terminal_size_of(&stdout).map_or(DEFAULT_COLUMNS, |(Width(columns), _)| usize::from(columns)))
}

fn put(tint: Option<Tint>, words: &str) {
    let text = visible(words);
    let indent = text.len() - text.trim_start_matches(' ').len();
    lay(tint, &text, indent + 2);
}

fn lay(tint: Option<Tint>, text: &str, hang: usize) {
    let tint = tint.filter(|_| colourful(&std::io::stdout()));
    let lines = match columns() {
        Some(columns) => wrapped(text, columns.max(MIN_COLUMNS), hang),
        None => vec![text.to_owned()],
    };
    for line in lines {
        match tint {
            Some(tint) => exact(format_args!("{}", tint.dye(&line))),
            None => exact(format_args!("{line}")),
        }
    }
}

/// Whether a character would move a cursor, change what is shown or its order, or be invisible, so that two keys look
/// alike.
pub fn steers(c: char) -> bool {
    let unseen = matches!(c,
        '\u{ad}'
        | '\u{61c}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}'
    );
    c.is_control() || unseen
}

/// `text` with characters that control terminals as words: `\n`, `\u{1b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if steers(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Equivalent JSON in which no string holds characters that control terminals. Only strings can hold any.
fn tame_json(json: &str) -> Cow<'_, str> {
    if !json.contains(steers) {
        return Cow::Borrowed(json);
    }
    let mut tame = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if steers(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to memory does not fail.
                let _ = write!(tame, "\\u{unit:04x}");
            }
        } else {
            tame.push(c);
        }
    }
    Cow::Owned(tame)
}

/// `text` as one word for a shell, also when it holds characters that cannot be typed.
pub fn quoted(text: &str) -> String {
    if !text.contains(steers) {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut word = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            c if steers(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(word, "\\x{byte:02x}");
                }
            }
            c => word.push(c),
        }
    }
    word + "'"
}

/// The columns that `text` takes.
pub fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// The longest beginning of `text` that takes at most `columns` columns.
pub fn beginning(text: &str, columns: usize) -> &str {
    let ends = text.char_indices().skip(1).map(|(at, _)| at).chain([text.len()]);
    // The next character may be a mark on the one before, and take no column; a mark that joins may even take one back.
    let fits = ends.take_while(|end| width(&text[..*end]) <= columns + 1).filter(|end| width(&text[..*end]) <= columns);
    &text[..fits.last().unwrap_or(0)]
}

/// The longest end of `text` that takes at most `columns` columns.
pub fn end(text: &str, columns: usize) -> &str {
    let starts = text.char_indices().rev().map(|(at, _)| at);
    let fits = starts.take_while(|start| width(&text[*start..]) <= columns + 1);
    &text[fits.filter(|start| width(&text[*start..]) <= columns).last().unwrap_or(text.len())..]
}

/// Lines of at most `columns` columns, broken between words if possible. All but the first are indented.
fn wrapped(text: &str, columns: usize, hang: usize) -> Vec<String> {
    let hang = hang.min(columns / 2);
    let (mut lines, mut rest, mut indent) = (Vec::new(), text, 0);
    while indent + width(rest) > columns {
        let fitting = beginning(rest, columns - indent);
        // Spaces at the beginning are the line's own indentation, so the line must not break there.
        let own = rest.len() - rest.trim_start_matches(' ').len();
        let next_is_space = rest[fitting.len()..].starts_with(' ');
        let cut = if next_is_space {
            fitting.len()
        } else {
            fitting.rfind(' ').filter(|at| *at > own).unwrap_or(fitting.len())
        };
        // A character that is wider than the line would never fit.
        let cut = if cut == 0 { rest.chars().next().map_or(0, char::len_utf8) } else { cut };
        lines.push(format!("{:indent$}{}", "", rest[..cut].trim_end_matches(' ')));
        rest = rest[cut..].trim_start_matches(' ');
        indent = hang;
    }
    if !rest.is_empty() || lines.is_empty() {
        lines.push(format!("{:indent$}{rest}", ""));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_shown_in_words() {
        let table = [
            ("eu/1", "eu/1"),
            ("日本 é 🚀", "日本 é 🚀"),
            ("x\u{200b}y\u{feff}\u{e0061}", r"x\u{200b}y\u{feff}\u{e0061}"),
            ("\x1b[2Jgone", r"\u{1b}[2Jgone"),
            ("a\nb\tc\r", r"a\nb\tc\r"),
            ("\u{9b}31m\u{7f}", r"\u{9b}31m\u{7f}"),
            ("txt.\u{202e}exe\u{2028}", r"txt.\u{202e}exe\u{2028}"),
        ];
        for (text, shown) in table {
            assert_eq!(visible(text), shown);
        }
    }

    #[test]
    fn json_means_the_same_and_steers_nothing() {
        let value = serde_json::json!({ "a": "\u{9b}\u{7f}\u{202e}\u{e0061}\u{1b}\n\"\\ é" });
        let text = serde_json::to_string(&value).unwrap();
        let tame = tame_json(&text);
        assert!(!tame.contains(steers) && tame.contains('é'), "{tame}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&tame).unwrap(), value);
    }

    #[test]
    fn a_word_for_a_shell_is_that_word_again() {
        let words = ["sync app-17", "it's", "a\x1b[1m\n'\\b", "\u{202e}x", "$HOME `id` \"", "日本"];
        for word in words {
            let echo = format!("printf %s {}", quoted(word));
            let output = std::process::Command::new("bash").args(["-c", &echo]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word, "{echo}");
        }
    }

    #[test]
    fn parts_are_cut_by_columns_and_not_by_characters() {
        let table = [
            ("abcdef", 4, "abcd", "cdef"),
            ("日本語", 5, "日本", "本語"),
            ("日本語", 1, "", ""),
            ("ab", 9, "ab", "ab"),
        ];
        for (text, columns, first, last) in table {
            assert_eq!((beginning(text, columns), end(text, columns)), (first, last), "{text}");
        }
        // A combining accent belongs to the letter before it.
        assert_eq!(beginning("e\u{301}x", 1), "e\u{301}");
    }

    #[test]
    fn lines_are_wrapped_between_words_below_their_text() {
        let table: [(&str, usize, usize, &[&str]); 7] = [
            ("", 20, 2, &[""]),
            ("short", 20, 2, &["short"]),
            ("one two three four five", 14, 2, &["one two three", "  four five"]),
            ("  name        one two three four", 24, 14, &["  name        one two", "            three four"]),
            ("aaaaaaaaaaaaaaaaaaaaaaaaa", 10, 2, &["aaaaaaaaaa", "  aaaaaaaa", "  aaaaaaa"]),
            ("日本語日本語", 6, 1, &["日本語", " 日本", " 語"]),
            ("  indented words", 10, 4, &["  indented", "    words"]),
        ];
        for (text, columns, hang, expected) in table {
            let lines = wrapped(text, columns, hang);
            assert_eq!(lines, expected, "{text}");
            assert!(lines.iter().all(|line| width(line) <= columns), "{lines:?}");
        }
    }
}
