//! The end of a stream that may be of any length.

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::answer::KEPT;

/// How much is asked for at a time: a pipe's usual capacity.
const CHUNK: usize = 64 * 1024;

/// The last [`KEPT`] bytes of a stream, in a buffer of at most three times that.
#[derive(Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    /// Reads `stream` to its end, and shows `look` everything that comes.
    pub async fn follow(&mut self, stream: Option<impl AsyncRead + Unpin>, mut look: impl FnMut(&[u8])) {
        let Some(mut stream) = stream else { return };
        // What cannot be read is as good as the end.
        while let Ok(fresh @ 1..) = (&mut stream).take(CHUNK as u64).read_buf(&mut self.0).await {
            look(&self.0[self.0.len() - fresh..]);
            if self.0.len() > 2 * KEPT {
                self.shorten();
            }
        }
    }

    fn shorten(&mut self) {
        let excess = self.0.len().saturating_sub(KEPT);
        self.0.drain(..excess);
    }
}

impl From<Tail> for Vec<u8> {
    fn from(mut tail: Tail) -> Self {
        tail.shorten();
        tail.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_end_is_kept() {
        for length in [0, 1, KEPT - 1, KEPT, KEPT + 1, 2 * KEPT, 2 * KEPT + 1, 10 * KEPT + 7] {
            let stream: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let mut tail = Tail::default();
            let mut seen = Vec::new();
            tail.follow(Some(&stream[..]), |fresh| seen.extend_from_slice(fresh)).await;
            assert!(seen == stream, "{length}");
            assert!(tail.0.len() <= 2 * KEPT && tail.0.capacity() <= 4 * KEPT, "{} bytes", tail.0.capacity());
            assert_eq!(Vec::from(tail), stream[length.saturating_sub(KEPT)..], "{length}");
        }
    }
}
