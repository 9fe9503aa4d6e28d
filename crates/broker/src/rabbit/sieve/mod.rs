//! What comes from the broker, before lapin reads it (pure).
//!
//! A broker hands on messages that lapin cannot take: headers that a rung's `x-death` makes longer than a frame, names
//! that are no UTF-8, tables nested by the thousand. lapin ends the connection for them, or takes the process with it,
//! at each delivery anew, and nothing else of that connection would ever get through. So frames pass through a sieve. A
//! message's properties that cannot be read are replaced by a header that says why, [`UNREADABLE`]; its body and its
//! delivery tag stay as they are. So it arrives like any other, and goes to quarantine. All else passes unchanged.
//!
//! [`content`] knows what lapin can take, [`stream`] has lapin read through the sieve.

mod content;
pub(super) mod stream;

use content::Fault;

/// The header of a message whose own properties could not be read.
pub(super) const UNREADABLE: &str = "roundelay-unreadable";

/// Of properties that are longer than a frame so much is looked at; and more than that is never taken, whatever the
/// broker would put into a frame.
const MAX_BUFFERED_BYTES: usize = 1 << 20;
/// How many bytes are read at a time.
const CHUNK: usize = 64 << 10;
/// The type, the channel and the size.
const HEAD: usize = 7;
/// That, and the byte at the end.
const AROUND: usize = HEAD + 1;

const METHOD: u8 = 1;
const HEADER: u8 = 2;

/// What may be in a method's arguments, as far as they are looked at.
#[derive(Clone, Copy)]
enum Argument {
    Fixed(usize),
    Name,
}

/// The methods that bear names which others have chosen: class, method, arguments. lapin closes the connection for
/// those that are no UTF-8, and this program does not need them.
const NAMING: [(u16, u16, &[Argument]); 3] = {
    use Argument::{Fixed, Name};
    [
        // basic.return: code and reason, exchange, routing key.
        (60, 50, &[Fixed(2), Name, Name, Name]),
        // basic.deliver: consumer, delivery tag and `redelivered`, exchange, routing key.
        (60, 60, &[Name, Fixed(9), Name, Name]),
        // basic.get-ok: delivery tag and `redelivered`, exchange, routing key.
        (60, 71, &[Fixed(9), Name, Name]),
    ]
};
/// connection.tune: the broker says how long frames may be.
const TUNE: (u16, u16) = (10, 30);

/// The bytes of a connection, on their way from the broker to lapin.
pub(super) struct Sieve {
    /// All that is held; beyond `end` there is room.
    buffer: Vec<u8>,
    /// What was given away already ends here,
    given: usize,
    /// what may be given away here,
    clear: usize,
    /// and what has come here.
    end: usize,
    /// How many of the following bytes may be handed on unseen.
    passing: usize,
    /// How many of the following bytes are dropped.
    dropping: usize,
    /// The most bytes that a frame has.
    longest: usize,
}

impl Sieve {
    /// For a connection whose frames we want no longer than this; 0 leaves it to the broker.
    pub(super) fn new(longest: u32) -> Self {
        let mut sieve = Self {
            buffer: Vec::new(),
            given: 0,
            clear: 0,
            end: 0,
            passing: 0,
            dropping: 0,
            longest: MAX_BUFFERED_BYTES,
        };
        sieve.agree(longest);
        sieve
    }

    /// Both sides may want shorter frames; the shorter counts.
    fn agree(&mut self, longest: u32) {
        if longest > 0 {
            self.longest = self.longest.min(longest as usize);
        }
    }

    /// Where to put what comes next.
    fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.given..self.end, 0);
        self.clear -= self.given;
        self.end -= self.given;
        self.given = 0;
        self.buffer.resize(self.end + CHUNK, 0);
        &mut self.buffer[self.end..]
    }

    /// Notes that this many bytes were put into the room.
    fn came(&mut self, bytes: usize) {
        self.end += bytes;
        while self.advance() {}
    }

    /// Hands on as many bytes as may be and fit; answers how many.
    fn give(&mut self, into: &mut [u8]) -> usize {
        let bytes = into.len().min(self.clear - self.given);
        into[..bytes].copy_from_slice(&self.buffer[self.given..self.given + bytes]);
        self.given += bytes;
        bytes
    }

    /// One step further through what has come; false when more has to come first.
    fn advance(&mut self) -> bool {
        let there = self.end - self.clear;
        if self.passing > 0 {
            let passing = self.passing.min(there);
            self.clear += passing;
            self.passing -= passing;
            return passing > 0;
        }
        if self.dropping > 0 {
            let dropping = self.dropping.min(there);
            self.buffer.copy_within(self.clear + dropping..self.end, self.clear);
            self.end -= dropping;
            self.dropping -= dropping;
            return dropping > 0;
        }
        let Some((head, rest)) = self.buffer[self.clear..self.end].split_first_chunk::<HEAD>() else { return false };
        let [kind, channel @ .., a, b, c, d] = *head;
        let size = u32::from_be_bytes([a, b, c, d]) as usize;
        let whole = size.saturating_add(AROUND);
        match kind {
            METHOD if size <= MAX_BUFFERED_BYTES => {
                if rest.len() < size {
                    return false;
                }
                self.method(size);
            }
            HEADER => {
                let most = self.longest.saturating_sub(AROUND);
                let Some(known) = rest.get(..size.min(MAX_BUFFERED_BYTES)) else { return false };
                let checked = if size > most { Err(Fault::long(most)) } else { content::check(known) };
                if let Err(fault) = checked {
                    let instead = content::instead(known, size, &fault, UNREADABLE);
                    let size = (instead.len() as u32).to_be_bytes();
                    let frame = [&[kind], &channel[..], &size, &instead, &[0xce]].concat();
                    let from = self.clear;
                    self.clear += frame.len();
                    self.end += frame.len();
                    self.buffer.splice(from..from, frame);
                    self.dropping = whole;
                    return true;
                }
            }
            // A body, a heartbeat, or an unknown frame: lapin handles it.
            _ => {}
        }
        self.passing = whole;
        true
    }

    /// Looks at a method that has come as a whole.
    fn method(&mut self, size: usize) {
        let from = self.clear + HEAD;
        let Some((id, arguments)) = self.buffer[from..from + size].split_first_chunk_mut::<4>() else { return };
        let [a, b, c, d] = *id;
        let id = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        if let Some((_, _, form)) = NAMING.iter().find(|(class, method, _)| (*class, *method) == id) {
            mend_names(form, arguments);
        } else if let (TUNE, [_, _, a, b, c, d, ..]) = (id, arguments) {
            let longest = u32::from_be_bytes([*a, *b, *c, *d]);
            self.agree(longest);
        }
    }
}

/// Puts a `?` in place of each byte of a name that is no UTF-8.
fn mend_names(form: &[Argument], mut arguments: &mut [u8]) {
    for argument in form {
        let bytes = match argument {
            Argument::Fixed(bytes) => *bytes,
            Argument::Name => match std::mem::take(&mut arguments).split_first_mut() {
                Some((length, rest)) => {
                    arguments = rest;
                    usize::from(*length)
                }
                None => return,
            },
        };
        let Some((value, rest)) = std::mem::take(&mut arguments).split_at_mut_checked(bytes) else { return };
        arguments = rest;
        if let Argument::Name = argument {
            mend(value);
        }
    }
}

fn mend(name: &mut [u8]) {
    while let Err(error) = std::str::from_utf8(name) {
        let from = error.valid_up_to();
        let to = error.error_len().map_or(name.len(), |bytes| from + bytes);
        name[from..to].fill(b'?');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::content::tests::{header, with_headers};
    use super::*;

    fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
        let size = (payload.len() as u32).to_be_bytes();
        [&[kind], &channel.to_be_bytes()[..], &size, payload, &[0xce]].concat()
    }

    fn method(class: u16, method: u16, arguments: &[u8]) -> Vec<u8> {
        frame(METHOD, 1, &[&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat())
    }

    fn tune(longest: u32) -> Vec<u8> {
        method(10, 30, &[&[0, 9][..], &longest.to_be_bytes(), &[0, 60]].concat())
    }

    fn filler(bytes: usize) -> Vec<u8> {
        let fields = [&b"\x06fillerS"[..], &(bytes as u32).to_be_bytes(), &vec![b'x'; bytes]].concat();
        frame(HEADER, 3, &with_headers(&fields))
    }

    /// What comes through, when it arrives in pieces of this size and is taken in pieces of that.
    fn through(bytes: &[u8], arrives: usize, taken: usize) -> Vec<u8> {
        let (mut sieve, mut out, mut into) = (Sieve::new(0), Vec::new(), vec![0; taken]);
        for piece in bytes.chunks(arrives) {
            let mut piece = piece;
            while !piece.is_empty() {
                let room = sieve.room();
                let fits = piece.len().min(room.len());
                room[..fits].copy_from_slice(&piece[..fits]);
                piece = &piece[fits..];
                sieve.came(fits);
                loop {
                    match sieve.give(&mut into) {
                        0 => break,
                        given => out.extend(&into[..given]),
                    }
                }
            }
        }
        out
    }

    /// The frames of such a stream: type, channel, payload.
    fn frames(mut bytes: &[u8]) -> Vec<(u8, u16, Vec<u8>)> {
        let mut frames = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() {
            let size = u32::from_be_bytes(head[3..].try_into().unwrap()) as usize;
            assert_eq!(rest[size], 0xce);
            frames.push((head[0], u16::from_be_bytes([head[1], head[2]]), rest[..size].to_vec()));
            bytes = &rest[size + 1..];
        }
        assert!(bytes.is_empty());
        frames
    }

    #[test]
    fn what_lapin_can_take_passes_unchanged() {
        let table = [
            vec![],
            b"AMQP\0\0\x09\x01".to_vec(),
            tune(4096),
            [tune(131_072), frame(8, 0, b""), filler(131_000), frame(3, 3, &[7; 70_000]), frame(3, 3, b"")].concat(),
            method(60, 60, "\x01c\0\0\0\0\0\0\0\x01\0\x01e\x05café".as_bytes()),
            frame(METHOD, 1, b"\0"),
            frame(77, 1, b"what"),
        ];
        for bytes in table {
            assert_eq!(through(&bytes, usize::MAX, 100_000), bytes, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn what_lapin_cannot_take_is_replaced_and_the_rest_stays() {
        let bad_id = frame(HEADER, 3, &header(1 << 7, b"\x04caf\xe9"));
        let body = frame(3, 3, b"the body");
        // What comes, and how much of the properties is missed.
        let table = [
            ([tune(131_072), filler(131_072), body.clone()].concat(), "131090 bytes"),
            ([tune(8_192), filler(9_000), body.clone()].concat(), "9018 bytes"),
            ([tune(0), filler(3 << 20), body.clone()].concat(), "3145746 bytes"),
            ([tune(131_072), bad_id, body.clone()].concat(), "message_id is not UTF-8"),
        ];
        for (bytes, says) in table {
            let (came, went) = (frames(&bytes), frames(&through(&bytes, usize::MAX, 100_000)));
            assert_eq!((&came[0], &came[2]), (&went[0], &went[2]));
            let (kind, channel, payload) = &went[1];
            assert_eq!((*kind, *channel, &payload[..12]), (HEADER, 3, &came[1].2[..12]));
            assert!(content::check(payload).is_ok() && payload.len() < 4_096 - AROUND);
            let told = String::from_utf8_lossy(payload);
            assert!(told.contains(UNREADABLE) && told.contains(says), "{told}");
        }
    }

    #[test]
    fn names_that_are_no_text_are_mended_where_they_are() {
        let table: [(u16, &[u8], &[u8]); 4] = [
            (50, b"\x01\x38\x02ok\x01e\x02\xe9k", b"\x01\x38\x02ok\x01e\x02?k"),
            (
                60,
                b"\x01c\0\0\0\0\0\0\0\xff\x01\x01\xff\x05a\xe2\x82b\xff",
                b"\x01c\0\0\0\0\0\0\0\xff\x01\x01?\x05a??b?",
            ),
            (71, b"\0\0\0\0\0\0\0\xff\0\x01e\x01\xff\0\0\0\xff", b"\0\0\0\0\0\0\0\xff\0\x01e\x01?\0\0\0\xff"),
            // Others name nothing that others have chosen.
            (21, b"\x01\xff", b"\x01\xff"),
        ];
        for (number, came, went) in table {
            assert_eq!(through(&method(60, number, came), 3, 100), method(60, number, went));
        }
    }

    proptest! {
        /// However it is cut into pieces, what comes through is the same.
        #[test]
        fn pieces_make_no_difference(arrives in 1..3_000_usize, taken in 1..3_000_usize) {
            let bytes = [
                tune(8_192), filler(8_000), frame(3, 3, &[1; 5_000]), filler(9_000), frame(3, 3, b"x"), frame(8, 0, b""),
                method(60, 71, b"\0\0\0\0\0\0\0\xff\0\x01e\x01\xff\0\0\0\xff"), filler(2 << 20), frame(3, 3, b"the end"),
            ]
            .concat();
            prop_assert_eq!(through(&bytes, arrives, taken), through(&bytes, usize::MAX, usize::MAX >> 40));
        }
    }
}
