//! The verbs that read the texts that users have given to the ledger, and replace them with another form (encryption).

use async_trait::async_trait;

use crate::error::LedgerError;

/// Where such texts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TextColumn {
    /// What the handlers of chains get.
    Payloads,
    /// What runs hand on.
    Carries,
    /// Bodies of one-off jobs that are kept.
    Jobs,
    /// Bodies of messages in quarantine.
    Quarantine,
}

impl TextColumn {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Payloads, Self::Carries, Self::Jobs, Self::Quarantine];
}

/// One of these texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredText {
    /// Its row: the epoch of the chain, or the number of the job or message.
    pub number: i64,
    /// The kind of the chain; empty for jobs and messages, which say it themselves.
    pub kind: String,
    /// The key of the chain; empty for jobs and messages.
    pub key: String,
    /// The text, as it lies there.
    pub text: Vec<u8>,
}

/// Another form for one of these texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextReplacement {
    /// Its row.
    pub number: i64,
    /// The text as it was read. When it has changed meanwhile, it is not replaced.
    pub was: Vec<u8>,
    /// The text in its new form.
    pub now: Vec<u8>,
}

/// Reads and replaces stored texts.
#[async_trait]
pub trait StoredTexts {
    /// Texts in rows above `after`, in their order. Payloads that say nothing (`null`) are left out.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn stored_texts(&self, of: TextColumn, after: i64, limit: u32) -> Result<Vec<StoredText>, LedgerError>;

    /// Replaces texts that have not changed; answers, for each, whether it was replaced.
    ///
    /// # Errors
    /// When nothing of it is known to be written.
    async fn replace_texts(&self, of: TextColumn, changes: Vec<TextReplacement>) -> Result<Vec<bool>, LedgerError>;
}
