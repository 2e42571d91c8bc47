//! Licence expressions as crates write them: `MIT OR Apache-2.0`, `(A OR B) AND C`, `A WITH exception`, and the
//! old `MIT/Apache-2.0`.

use anyhow::{Result, bail, ensure};

/// Whether a choice of licences exists that uses only allowed ones.
pub(super) fn is_allowed(expression: &str, allowed: &[String]) -> Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, allowed };
    let verdict = reader.either()?;
    ensure!(reader.words.is_empty(), "cannot read the licence `{expression}`");
    Ok(verdict)
}

struct Reader<'a> {
    words: &'a [&'a str],
    allowed: &'a [String],
}

impl Reader<'_> {
    fn either(&mut self) -> Result<bool> {
        let mut verdict = self.both()?;
        while self.takes("OR") {
            verdict |= self.both()?;
        }
        Ok(verdict)
    }

    /// Binds closer than `OR`.
    fn both(&mut self) -> Result<bool> {
        let mut verdict = self.one()?;
        while self.takes("AND") {
            verdict &= self.one()?;
        }
        Ok(verdict)
    }

    fn one(&mut self) -> Result<bool> {
        if self.takes("(") {
            let verdict = self.either()?;
            ensure!(self.takes(")"), "a bracket of a licence is not closed");
            return Ok(verdict);
        }
        let mut name = self.name()?.to_owned();
        if self.takes("WITH") {
            name = format!("{name} WITH {}", self.name()?);
        }
        Ok(self.allowed.contains(&name))
    }

    fn name(&mut self) -> Result<&str> {
        match self.words.split_first() {
            Some((word, rest)) if !["(", ")", "AND", "OR", "WITH"].contains(word) => {
                self.words = rest;
                Ok(word)
            }
            Some((word, _)) => bail!("a licence has `{word}` where a name should be"),
            None => bail!("a licence ends where a name should be"),
        }
    }

    fn takes(&mut self, wanted: &str) -> bool {
        match self.words.split_first() {
            Some((word, rest)) if *word == wanted => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(expression: &str) -> Result<bool> {
        let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        is_allowed(expression, &allowed)
    }

    #[test]
    fn one_of_several_is_enough_and_all_of_several_are_needed() {
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "GPL-3.0/MIT",
            "ISC AND (GPL-3.0 OR MIT)",
            "GPL-3.0 OR MIT AND ISC",
        ] {
            assert!(verdict(good).unwrap(), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "Apache-2.0"] {
            assert!(!verdict(bad).unwrap(), "{bad}");
        }
    }

    #[test]
    fn an_exception_belongs_to_its_licence() {
        assert!(verdict("Apache-2.0 WITH LLVM-exception").unwrap());
        assert!(!verdict("MIT WITH LLVM-exception").unwrap());
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        for broken in ["", "MIT OR", "(MIT", "MIT)", "MIT ISC", "AND MIT"] {
            assert!(verdict(broken).is_err(), "{broken}");
        }
    }
}
