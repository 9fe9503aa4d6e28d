//! The properties of a message: whether lapin can take them, and what can be said of those that it cannot (pure).
//!
//! They are read without recursion and without keeping anything, since every message goes through here, and tables may
//! be nested as deep as a frame has room.

use std::fmt;

/// How many tables and lists may be nested. lapin reads them by recursion, so that a message of some thousand
/// levels overflows the stack of its thread, which aborts the process.
const MAX_LEVELS: usize = 32;
/// How many names of headers are reported.
const MAX_NAMES: usize = 10;
/// How much of a text is shown, in bytes.
const MAX_SHOWN_BYTES: usize = 100;

/// What stands before the properties: the class, a weight, and the size of the body.
const BEFORE: usize = 12;
/// The property for a program's own headers.
const HEADERS: &str = "headers";
const MESSAGE_ID: &str = "message_id";

/// How a property is written.
#[derive(Clone, Copy)]
enum Form {
    Fixed(usize),
    /// With one byte for the length.
    Name,
    Table,
}

/// In their order in the frame. The n-th property is there if the n-th flag, from the highest bit, is set.
const PROPERTIES: [(&str, Form); 14] = [
    ("content_type", Form::Name),
    ("content_encoding", Form::Name),
    (HEADERS, Form::Table),
    ("delivery_mode", Form::Fixed(1)),
    ("priority", Form::Fixed(1)),
    ("correlation_id", Form::Name),
    ("reply_to", Form::Name),
    ("expiration", Form::Name),
    (MESSAGE_ID, Form::Name),
    ("timestamp", Form::Fixed(8)),
    ("type", Form::Name),
    ("user_id", Form::Name),
    ("app_id", Form::Name),
    ("cluster_id", Form::Name),
];

/// The flag of the property at this place.
fn flag(place: usize) -> u16 {
    0x8000 >> place
}

/// Why lapin cannot take properties; phrased to follow "the AMQP properties cannot be read: ".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// They do not fit into a frame, which holds this many bytes of them: the broker has added to them.
    Long(usize),
    /// A name is in another encoding.
    NotText { what: &'static str, shown: String },
    /// Tables and lists are nested too deeply.
    Deep,
    /// A field has a type that AMQP does not know.
    Type(u8),
    /// A size leads beyond the end, or something is left over.
    Size,
}

impl Fault {
    /// That a frame holds no longer content header than this.
    pub(super) fn long(most: usize) -> Self {
        Self::Long(most.saturating_sub(BEFORE))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Long(most) => write!(f, "a frame of this connection holds {most} bytes of them"),
            Self::NotText { what, shown } => write!(f, "{what} is not UTF-8: `{shown}`"),
            Self::Deep => write!(f, "tables are nested more than {MAX_LEVELS} deep"),
            Self::Type(tag) => write!(f, "a header has the type `{}`, which is unknown", tag.escape_ascii()),
            Self::Size => f.write_str("their sizes do not agree"),
        }
    }
}

/// Reads on from a place; nothing where that leads beyond the end.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    fn length(&mut self) -> Option<usize> {
        let bytes = self.take(4)?.try_into().ok()?;
        Some(u32::from_be_bytes(bytes) as usize)
    }

    fn name(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?;
        self.take(length.into())
    }

    fn flags(&mut self) -> Option<u16> {
        self.take(BEFORE)?;
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }
}

/// Whether lapin can read this content header. Its size is compared with the longest frame elsewhere ([`Fault::Long`]).
pub(super) fn check(header: &[u8]) -> Result<(), Fault> {
    let mut reader = Reader(header);
    let flags = reader.flags().ok_or(Fault::Size)?;
    for (place, (what, form)) in PROPERTIES.into_iter().enumerate() {
        if flags & flag(place) == 0 {
            continue;
        }
        match form {
            Form::Fixed(bytes) => drop(reader.take(bytes).ok_or(Fault::Size)?),
            Form::Name => text(reader.name(), what)?,
            Form::Table => {
                let table = reader.length().and_then(|length| reader.take(length)).ok_or(Fault::Size)?;
                fields(table)?;
            }
        }
    }
    if reader.0.is_empty() { Ok(()) } else { Err(Fault::Size) }
}

fn text(name: Option<&[u8]>, what: &'static str) -> Result<(), Fault> {
    let name = name.ok_or(Fault::Size)?;
    match std::str::from_utf8(name) {
        Ok(_) => Ok(()),
        Err(_) => Err(Fault::NotText { what, shown: shown(name) }),
    }
}

/// A table or a list that has been begun.
#[derive(Clone, Copy, Default)]
struct Level<'a> {
    rest: &'a [u8],
    /// Its fields have names.
    named: bool,
}

/// The fields of a table, and all that is in them.
fn fields(table: &[u8]) -> Result<(), Fault> {
    let mut levels = [Level::default(); MAX_LEVELS];
    levels[0] = Level { rest: table, named: true };
    let mut deepest = 0;
    loop {
        let level = &mut levels[deepest];
        if level.rest.is_empty() {
            if deepest == 0 {
                return Ok(());
            }
            deepest -= 1;
            continue;
        }
        let mut reader = Reader(level.rest);
        if level.named {
            text(reader.name(), "the name of a header")?;
        }
        let tag = reader.byte().ok_or(Fault::Size)?;
        let value = value(&mut reader, tag)?;
        level.rest = reader.0;
        if let b'A' | b'F' = tag {
            deepest += 1;
            let inside = levels.get_mut(deepest).ok_or(Fault::Deep)?;
            *inside = Level { rest: value, named: tag == b'F' };
        }
    }
}

/// Takes the value of a field of this type. Of a type with a length in front, that is what comes after the length.
fn value<'a>(reader: &mut Reader<'a>, tag: u8) -> Result<&'a [u8], Fault> {
    let bytes = match tag {
        b'V' => Some(0),
        b't' | b'b' | b'B' => Some(1),
        b's' | b'U' | b'u' => Some(2),
        b'I' | b'i' | b'f' => Some(4),
        b'D' => Some(5),
        b'l' | b'L' | b'd' | b'T' => Some(8),
        b'S' | b'x' | b'A' | b'F' => reader.length(),
        unknown => return Err(Fault::Type(unknown)),
    };
    bytes.and_then(|bytes| reader.take(bytes)).ok_or(Fault::Size)
}

/// A text for people, in whatever encoding it may be.
fn shown(text: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(text).replace(char::is_control, "\u{fffd}");
    if text.len() > MAX_SHOWN_BYTES {
        text.truncate(text.floor_char_boundary(MAX_SHOWN_BYTES));
        text.push('…');
    }
    text
}

/// The content header that is handed on in place of one with a fault. `known` is the beginning of the faulty one,
/// `bytes` its size. The new one has the same size of the body and, where it can be read, the same id of the message.
/// Its only header is called `header_name`, and says what was wrong.
pub(super) fn instead(known: &[u8], bytes: usize, fault: &Fault, header_name: &str) -> Vec<u8> {
    let mut told = format!("{fault}; they were dropped ({} bytes)", bytes.saturating_sub(BEFORE));
    let names = names(known).join("`, `");
    if !names.is_empty() {
        told += &format!("; the headers are, or begin with, `{names}`");
    }
    let id = id(known).unwrap_or_default();
    let place = |name| PROPERTIES.iter().position(|(property, _)| *property == name).map_or(0, flag);
    let flags = place(HEADERS) | if id.is_empty() { 0 } else { place(MESSAGE_ID) };
    let mut header = known.get(..BEFORE).unwrap_or(&[0; BEFORE]).to_vec();
    header.extend(flags.to_be_bytes());
    let mut field = Vec::new();
    let name = |into: &mut Vec<u8>, name: &[u8]| {
        into.push(name.len().min(255) as u8);
        into.extend(&name[..name.len().min(255)]);
    };
    name(&mut field, header_name.as_bytes());
    field.push(b'S');
    field.extend((told.len() as u32).to_be_bytes());
    field.extend(told.as_bytes());
    header.extend((field.len() as u32).to_be_bytes());
    header.extend(field);
    if !id.is_empty() {
        name(&mut header, id);
    }
    header
}

/// The properties that can be told apart, each with what follows its length.
fn properties(known: &[u8]) -> impl Iterator<Item = (&'static str, &[u8])> {
    let mut reader = Reader(known);
    let flags = reader.flags().unwrap_or_default();
    let there = PROPERTIES.into_iter().enumerate().filter(move |(place, _)| flags & flag(*place) != 0);
    there.map_while(move |(_, (what, form))| {
        let value = match form {
            Form::Fixed(bytes) => reader.take(bytes)?,
            Form::Name => reader.name()?,
            Form::Table => {
                let length = reader.length()?;
                // `known` may end within the table; then its beginning is taken.
                reader.take(length).or_else(|| reader.take(reader.0.len()))?
            }
        };
        Some((what, value))
    })
}

/// The message's id, where it is a text.
fn id(known: &[u8]) -> Option<&[u8]> {
    let (_, id) = properties(known).find(|(what, _)| *what == MESSAGE_ID)?;
    std::str::from_utf8(id).is_ok().then_some(id)
}

/// The names of the first headers, as far as they can be told.
fn names(known: &[u8]) -> Vec<String> {
    let Some((_, table)) = properties(known).find(|(what, _)| *what == HEADERS) else { return Vec::new() };
    let mut reader = Reader(table);
    let mut names = Vec::new();
    while names.len() < MAX_NAMES
        && let Some(name) = reader.name().filter(|name| !name.is_empty())
    {
        names.push(shown(name));
        if reader.byte().is_none_or(|tag| value(&mut reader, tag).is_err()) {
            break;
        }
    }
    names
}

#[cfg(test)]
pub(super) mod tests {
    use lapin::protocol::basic::parse_properties;
    use lapin::types::AMQPValue;
    use proptest::prelude::*;

    use super::*;

    fn long(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
    }

    fn name(bytes: &[u8]) -> Vec<u8> {
        [&[bytes.len() as u8], bytes].concat()
    }

    /// A content header of a message with a body of seven bytes.
    pub(in super::super) fn header(flags: u16, properties: &[u8]) -> Vec<u8> {
        [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7][..], &flags.to_be_bytes(), properties].concat()
    }

    /// One with these fields as headers.
    pub(in super::super) fn with_headers(fields: &[u8]) -> Vec<u8> {
        header(1 << 13, &long(fields))
    }

    /// Tables or lists in one another.
    fn nested(levels: usize, tag: u8) -> Vec<u8> {
        let mut inside = Vec::new();
        for _ in 0..levels {
            let named: &[u8] = if tag == b'F' { b"\x01n" } else { b"" };
            inside = [named, &[tag], &long(&inside)].concat();
        }
        // The headers themselves are a table.
        if tag == b'F' { inside } else { [name(b"list"), inside].concat() }
    }

    /// Whether lapin takes it.
    fn lapin_takes(header: &[u8]) -> bool {
        matches!(parse_properties(&header[BEFORE..]), Ok((rest, _)) if rest.is_empty())
    }

    #[test]
    fn what_lapin_cannot_take_is_known_and_told() {
        let not_text = |what, shown: &str| Err(Fault::NotText { what, shown: shown.into() });
        let of_a_type = |tag: u8, value: &[u8]| with_headers(&[&name(b"a"), &[tag][..], value].concat());
        let table = [
            (header(0, b""), Ok(())),
            (header(2, b""), Ok(())),
            (header(0, b"x"), Err(Fault::Size)),
            (header(0x8000, b""), Err(Fault::Size)),
            (header(0x8000, b"\x02a"), Err(Fault::Size)),
            (header(1 << 7, &name(b"caf\xe9")), not_text("message_id", "caf\u{fffd}")),
            (header(1 << 7, &name("café".as_bytes())), Ok(())),
            (header(4, &name(b"\xff")), not_text("cluster_id", "\u{fffd}")),
            (with_headers(b""), Ok(())),
            (with_headers(&[&name(b"\xe9")[..], b"V"].concat()), not_text("the name of a header", "\u{fffd}")),
            (of_a_type(b'S', &long(b"\xff")), Ok(())),
            (of_a_type(b'S', b"\0\0\0\x01"), Err(Fault::Size)),
            (
                of_a_type(b'F', &long(&[&name(b"\xe9")[..], b"V"].concat())),
                not_text("the name of a header", "\u{fffd}"),
            ),
            (of_a_type(b'A', &long(b"VVZ")), Err(Fault::Type(b'Z'))),
            (of_a_type(b'Z', b""), Err(Fault::Type(b'Z'))),
            (with_headers(&nested(MAX_LEVELS - 1, b'F')), Ok(())),
            (with_headers(&nested(MAX_LEVELS, b'F')), Err(Fault::Deep)),
            (with_headers(&nested(MAX_LEVELS - 1, b'A')), Ok(())),
            (with_headers(&nested(26_000, b'A')), Err(Fault::Deep)),
            (vec![], Err(Fault::Size)),
        ];
        for (header, expected) in table {
            assert_eq!(check(&header), expected, "{}", header.escape_ascii());
            // Those that lapin can take and are too deep are for lapin's stack, and not for this one.
            if !header.is_empty() && expected != Err(Fault::Deep) {
                assert_eq!(lapin_takes(&header), expected.is_ok(), "{}", header.escape_ascii());
            }
        }
    }

    /// Also at the first bytes of its properties.
    #[test]
    fn what_is_handed_on_instead_can_be_read_and_says_what_was_wrong() {
        let filler = [&name(b"first")[..], b"S", &long(&[b'x'; 500]), &name(b"second"), b"V"].concat();
        let with_id = [long(&filler), name(b"the id")].concat();
        let table = [
            (header(1 << 13 | 1 << 7, &with_id), usize::MAX, "`first`, `second`", "the id"),
            (header(1 << 13 | 1 << 7, &with_id), 300, "`first`", ""),
            (with_headers(&nested(26_000, b'A')), usize::MAX, "`list`", ""),
            (header(1 << 7, &name(b"caf\xe9")), usize::MAX, "(200000 bytes)", ""),
            (header(0, b""), 3, "(200000 bytes)", ""),
        ];
        for (header, known, says, id) in table {
            let fault = Fault::Long(131_052);
            let known = &header[..known.min(header.len())];
            let instead = instead(known, 200_000 + BEFORE, &fault, "why");
            assert_eq!(check(&instead), Ok(()));
            let (_, read) = parse_properties(&instead[BEFORE..]).unwrap();
            let Some(AMQPValue::LongString(why)) = read.headers().as_ref().unwrap().inner().get("why") else {
                panic!()
            };
            let why = why.to_string();
            assert!(why.contains("200000") && why.ends_with(says), "{why}");
            assert_eq!(read.message_id().as_ref().map_or("", |id| id.as_str()), id);
            if known.len() > BEFORE {
                assert_eq!(instead[..BEFORE], header[..BEFORE], "the body has the size that it had");
            }
        }
    }

    /// Values of all types, rightly written, as deep as these may be.
    fn fields() -> impl Strategy<Value = Vec<u8>> {
        let types = b"VtbBsUuIifDlLdTSx".to_vec();
        let leaf = (prop::sample::select(types), prop::collection::vec(any::<u8>(), 0..12)).prop_map(|(tag, bytes)| {
            let mut filled = bytes.clone();
            filled.resize(8, 0);
            let mut length = Reader(&filled);
            let value = match tag {
                b'S' | b'x' => long(&bytes),
                tag => super::value(&mut length, tag).unwrap_or_default().to_vec(),
            };
            [vec![tag], value].concat()
        });
        let value = leaf.prop_recursive(6, 40, 5, |inside| {
            let named = (prop::collection::vec(97..123_u8, 0..4), inside.clone());
            let tables = prop::collection::vec(named.prop_map(|(key, value)| [name(&key), value].concat()), 0..5);
            prop_oneof![
                prop::collection::vec(inside, 0..5).prop_map(|all| [b"A".to_vec(), long(&all.concat())].concat()),
                tables.prop_map(|all| [b"F".to_vec(), long(&all.concat())].concat()),
            ]
        });
        prop::collection::vec(("[a-z]{0,5}", value), 0..6)
            .prop_map(|all| all.into_iter().flat_map(|(key, value)| [name(key.as_bytes()), value].concat()).collect())
    }

    proptest! {
        /// What passes here is what lapin can read, except for what is too deep, which lapin might read.
        #[test]
        fn lapin_agrees(
            table in fields(),
            names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 10),
            flags in any::<u16>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(), is_cut in any::<bool>(),
        ) {
            let mut names = names.iter();
            let mut properties = Vec::new();
            for (place, (_, form)) in PROPERTIES.into_iter().enumerate() {
                if flags & flag(place) != 0 {
                    properties.extend(match form {
                        Form::Fixed(bytes) => vec![7; bytes],
                        Form::Name => name(names.next().unwrap()),
                        Form::Table => long(&table),
                    });
                }
            }
            for (place, byte) in damage {
                if !properties.is_empty() {
                    let place = place.index(properties.len());
                    properties[place] = byte;
                }
            }
            if is_cut && !properties.is_empty() {
                properties.truncate(cut.index(properties.len()));
            }
            let header = header(flags, &properties);
            match check(&header) {
                Err(Fault::Deep) => {}
                checked => prop_assert_eq!(checked.is_ok(), lapin_takes(&header), "{:?}", checked),
            }
            // Whatever is wrong with it, something can be said.
            prop_assert_eq!(check(&instead(&header, header.len(), &Fault::Size, "why")), Ok(()));
        }
    }
}
