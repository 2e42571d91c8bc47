//! Covers secret values in what is recorded, at equal length.
//!
//! A value is found as it is. One that the command has encoded or cut up is not.

use std::sync::Arc;

use belljar_spec::{ExecFailure, NotFoundCause, OsText};

use memchr::memmem;
use zeroize::{Zeroize, Zeroizing};

/// Shorter values stand in any text by chance.
const SHORTEST: usize = 4;
const COVER: u8 = b'*';

/// In a variable's name, anywhere.
const SECRET_WORDS: &[&str] = &[
    "SECRET",
    "TOKEN",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "APIKEY",
    "API_KEY",
    "CREDENTIAL",
    "PRIVATE_KEY",
    "AUTH",
];
/// In a variable's name, as a word of its own: `MONKEY` is no key.
const SECRET_PARTS: &[&str] = &["KEY", "KEYS", "PASS", "CRED", "CREDS"];

/// Whether a variable of this name probably holds a secret.
pub fn looks_secret(name: &str) -> bool {
    let upper = name.to_uppercase();
    SECRET_WORDS.iter().any(|word| upper.contains(word))
        || upper.split(|c: char| !c.is_alphanumeric()).any(|part| SECRET_PARTS.contains(&part))
}

/// Values that must not be recorded. Wiped when the last holder lets go.
#[derive(Clone, Default)]
pub struct Secrets(Arc<Vec<Zeroizing<Vec<u8>>>>);

impl Secrets {
    /// Values that are too short to be distinguished from chance are left out.
    pub fn new(values: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut kept: Vec<_> = values.into_iter().map(Zeroizing::new).collect();
        kept.retain(|value| value.len() >= SHORTEST);
        kept.sort_unstable_by(|a, b| a.as_slice().cmp(b.as_slice()));
        kept.dedup();
        Self(Arc::new(kept))
    }

    /// These and more.
    pub fn and(&self, values: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self::new(self.0.iter().map(|value| value.to_vec()).chain(values))
    }

    /// A word as it may be recorded.
    pub fn mask_word(&self, word: &OsText) -> OsText {
        self.mask_text(word.as_bytes()).map_or_else(|| word.clone(), OsText::from_bytes)
    }

    /// The same for a sentence.
    pub fn mask_words_of(&self, text: &str) -> String {
        match self.mask_text(text.as_bytes()) {
            None => text.to_owned(),
            Some(masked) => String::from_utf8_lossy(&masked).into_owned(),
        }
    }

    /// A failure as it may be recorded: its words can quote a path.
    pub fn mask_failure(&self, failure: &ExecFailure) -> ExecFailure {
        match failure {
            ExecFailure::NotFound { cause } => ExecFailure::NotFound {
                cause: cause.as_ref().map(|cause| match cause {
                    NotFoundCause::Link { link, to } => {
                        NotFoundCause::Link { link: self.mask_word(link), to: self.mask_word(to) }
                    }
                    NotFoundCause::Interpreter { file, interpreter } => {
                        NotFoundCause::Interpreter {
                            file: self.mask_word(file),
                            interpreter: self.mask_word(interpreter),
                        }
                    }
                }),
            },
            ExecFailure::NotExecutable { why } => {
                ExecFailure::NotExecutable { why: self.mask_words_of(why) }
            }
            ExecFailure::Other { why } => ExecFailure::Other { why: self.mask_words_of(why) },
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The text with its secrets covered; nothing if there is none in it.
    pub fn mask_text(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut masker = Masker::new(self.clone());
        let mut out = Vec::with_capacity(text.len());
        masker.push(text, &mut out);
        masker.finish(&mut out);
        (masker.count() > 0).then_some(out)
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({} hidden)", self.0.len())
    }
}

/// Covers the secrets in one stream, also where they come in pieces.
pub struct Masker {
    secrets: Secrets,
    /// The end of the stream so far, as far as a secret may begin in it.
    held: Vec<u8>,
    /// Which of the held bytes belong to a secret that was found.
    covered: Vec<bool>,
    count: u64,
}

impl Masker {
    pub fn new(secrets: Secrets) -> Self {
        Self { secrets, held: Vec::new(), covered: Vec::new(), count: 0 }
    }

    /// More secrets, from now on; what is held back stays so.
    pub(super) fn cover_too(&mut self, secrets: Secrets) {
        self.secrets = secrets;
    }

    /// Whether bytes pass as they are, so that they need not be copied.
    pub fn is_idle(&self) -> bool {
        self.secrets.is_empty()
    }

    /// How many secrets were found; where two overlap, both count.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many bytes wait for what comes next.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Appends to `out` what is decided already.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.is_idle() {
            out.extend_from_slice(bytes);
            return;
        }
        let base = out.len();
        let seen = self.held.len();
        out.extend_from_slice(&self.held);
        out.extend_from_slice(bytes);
        let work = &mut out[base..];
        let (found, count) = self.find(work, seen);
        self.count += count;

        let hold_from = work.len() - self.longest_beginning(work);
        let mut covered = vec![false; work.len() - hold_from];
        self.held.zeroize();
        self.held.extend_from_slice(&work[hold_from..]);
        let mut cover = |from: usize, to: usize| {
            work[from..to].fill(COVER);
            covered[from.max(hold_from) - hold_from..to.max(hold_from) - hold_from].fill(true);
        };
        for (at, _) in self.covered.iter().enumerate().filter(|(_, covered)| **covered) {
            cover(at, at + 1);
        }
        for (from, to) in found {
            cover(from, to);
        }
        self.covered = covered;
        out[base + hold_from..].zeroize();
        out.truncate(base + hold_from);
    }

    /// The stream is over: what waited is no secret, but for what was found in it.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let held = self.held.iter().zip(&self.covered);
        out.extend(held.map(|(byte, covered)| if *covered { COVER } else { *byte }));
        self.held.zeroize();
        self.covered.clear();
    }

    /// Where secrets stand that end after the first `seen` bytes (others were found before), and how
    /// many they are. Where a secret overlaps itself, one range is given.
    fn find(&self, work: &[u8], seen: usize) -> (Vec<(usize, usize)>, u64) {
        let mut found: Vec<(usize, usize)> = Vec::new();
        let mut count = 0;
        for secret in self.secrets.0.iter() {
            let finder = memmem::Finder::new(secret.as_slice());
            let of_others = found.len();
            let mut from = (seen + 1).saturating_sub(secret.len());
            while let Some(at) = work.get(from..).and_then(|rest| finder.find(rest)) {
                let (start, end) = (from + at, from + at + secret.len());
                match found[of_others..].last_mut() {
                    Some(last) if last.1 >= start => last.1 = end,
                    _ => found.push((start, end)),
                }
                count += 1;
                from = start + 1;
            }
        }
        (found, count)
    }

    /// The length of the longest end of `work` that a secret begins with and is longer than.
    fn longest_beginning(&self, work: &[u8]) -> usize {
        let mut longest = 0;
        for secret in self.secrets.0.iter() {
            let most = work.len().min(secret.len() - 1);
            let tail = &work[work.len() - most..];
            // Only an end that is longer than what is held already is of interest.
            let worth = &tail[..most.saturating_sub(longest)];
            let begins = |at: &usize| secret.starts_with(&tail[*at..]);
            if let Some(at) = memchr::memchr_iter(secret[0], worth).find(begins) {
                longest = most - at;
            }
        }
        longest
    }
}

impl Drop for Masker {
    fn drop(&mut self) {
        self.held.zeroize();
    }
}

impl std::fmt::Debug for Masker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masker").field("count", &self.count).finish_non_exhaustive()
    }
}
