//! A script becomes the simple commands that it has anywhere.

use brush_parser::ast::{
    AndOr, AssignmentValue, Command, CommandPrefixOrSuffixItem as Item, CompoundCommand,
    CompoundList, ExtendedTestExpr, FunctionBody, IoFileRedirectKind, IoFileRedirectTarget,
    IoRedirect, Pipeline, RedirectList, SimpleCommand, SubshellCommand, Word as AstWord,
};
use brush_parser::word::{Parameter, ParameterExpr, WordPiece, WordPieceWithSource};

use super::ansi;
use super::braces::{Braces, expanded};
use super::parse::{Undecided, options, parse, undecided};
use super::word::Word;

/// Substitutions in one word, where it does the same.
const MOST_SUBSTITUTIONS: usize = 10;
/// Each level of pipelines within pipelines doubles them.
const MOST_COPIED: usize = 5_000;
/// Substitutions within substitutions.
const DEEPEST_TEXT: usize = 6;

/// All that a script has in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) pipelines: Vec<Vec<Simple>>,
    /// A function that starts itself twice.
    pub(crate) bomb: Option<String>,
}

/// One command with its words, the program first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Simple {
    pub(crate) words: Vec<Word>,
    /// Files that it writes to.
    pub(crate) writes: Vec<Word>,
    /// What stands in the script as its input.
    pub(crate) input: Option<Word>,
}

pub(crate) fn read(text: &str) -> Result<Script, Undecided> {
    let mut walk = Walk { script: Script::default(), depth: 0, copied: 0 };
    walk.text(text)?;
    Ok(walk.script)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    BeforeProgram,
    Argument,
}

struct Walk {
    script: Script,
    depth: usize,
    /// Commands that stand for themselves and in a pipeline around them.
    copied: usize,
}

impl Walk {
    fn text(&mut self, text: &str) -> Result<(), Undecided> {
        if self.depth >= DEEPEST_TEXT {
            return undecided("there are too many scripts within scripts");
        }
        self.depth += 1;
        let program = parse(text)?;
        program.complete_commands.iter().try_for_each(|list| self.list(list))?;
        self.depth -= 1;
        Ok(())
    }

    fn list(&mut self, list: &CompoundList) -> Result<(), Undecided> {
        for item in &list.0 {
            self.pipeline(&item.0.first)?;
            for next in &item.0.additional {
                let (AndOr::And(pipeline) | AndOr::Or(pipeline)) = next;
                self.pipeline(pipeline)?;
            }
        }
        Ok(())
    }

    fn pipeline(&mut self, pipeline: &Pipeline) -> Result<(), Undecided> {
        let mut commands = Vec::new();
        for command in &pipeline.seq {
            match command {
                Command::Simple(simple) => commands.extend(self.simple(simple)?),
                Command::Compound(compound, redirects) => {
                    let before = self.script.pipelines.len();
                    self.compound(compound)?;
                    // Whatever is in it is fed as well, and feeds; alone it is judged for itself already.
                    if pipeline.seq.len() > 1 || redirects.is_some() {
                        let inner = self.script.pipelines[before..].iter().flatten();
                        self.copied += inner.clone().count();
                        if self.copied > MOST_COPIED {
                            return undecided("there are too many pipelines within pipelines");
                        }
                        commands.extend(inner.cloned());
                    }
                    commands.extend(self.redirects(redirects.as_ref())?);
                }
                Command::Function(function) => {
                    let FunctionBody(body, redirects) = &function.body;
                    let before = self.script.pipelines.len();
                    self.compound(body)?;
                    let name = function.fname.value.as_str();
                    let calls = |pipeline: &&Vec<Simple>| {
                        let own = |one: &&Simple| {
                            one.words.first().is_some_and(|word| word.raw() == name)
                        };
                        pipeline.iter().filter(own).count() > 1
                    };
                    if self.script.pipelines[before..].iter().any(|one| calls(&one)) {
                        self.script.bomb = Some(name.to_owned());
                    }
                    commands.extend(self.redirects(redirects.as_ref())?);
                }
                Command::ExtendedTest(test) => self.test(&test.expr)?,
            }
        }
        self.script.pipelines.push(commands);
        Ok(())
    }

    fn compound(&mut self, command: &CompoundCommand) -> Result<(), Undecided> {
        match command {
            CompoundCommand::Arithmetic(arithmetic) => self.inner_text(&arithmetic.expr.value),
            CompoundCommand::ArithmeticForClause(clause) => {
                for part in [&clause.initializer, &clause.condition, &clause.updater] {
                    part.iter().try_for_each(|part| self.inner_text(&part.value))?;
                }
                self.list(&clause.body.list)
            }
            CompoundCommand::BraceGroup(group) => self.list(&group.list),
            CompoundCommand::Subshell(subshell) => self.list(&subshell.list),
            CompoundCommand::ForClause(clause) => {
                self.all(clause.values.iter().flatten())?;
                self.list(&clause.body.list)
            }
            CompoundCommand::CaseClause(clause) => {
                self.word(&clause.value)?;
                for case in &clause.cases {
                    self.all(case.patterns.iter())?;
                    case.cmd.iter().try_for_each(|list| self.list(list))?;
                }
                Ok(())
            }
            CompoundCommand::IfClause(clause) => {
                self.list(&clause.condition)?;
                self.list(&clause.then)?;
                for part in clause.elses.iter().flatten() {
                    part.condition.iter().try_for_each(|list| self.list(list))?;
                    self.list(&part.body)?;
                }
                Ok(())
            }
            CompoundCommand::WhileClause(clause) | CompoundCommand::UntilClause(clause) => {
                self.list(&clause.0)?;
                self.list(&clause.1.list)
            }
        }
    }

    fn test(&mut self, test: &ExtendedTestExpr) -> Result<(), Undecided> {
        match test {
            ExtendedTestExpr::And(one, other) | ExtendedTestExpr::Or(one, other) => {
                self.test(one)?;
                self.test(other)
            }
            ExtendedTestExpr::Not(inner) | ExtendedTestExpr::Parenthesized(inner) => {
                self.test(inner)
            }
            ExtendedTestExpr::UnaryTest(_, word) => self.word(word).map(drop),
            ExtendedTestExpr::BinaryTest(_, one, other) => self.all([one, other]),
        }
    }

    fn simple(&mut self, command: &SimpleCommand) -> Result<Option<Simple>, Undecided> {
        let mut simple = Simple::default();
        for item in command.prefix.iter().flat_map(|prefix| &prefix.0) {
            self.item(item, &mut simple, Place::BeforeProgram)?;
        }
        if let Some(program) = &command.word_or_name {
            simple.words.extend(self.words(program)?);
        }
        for item in command.suffix.iter().flat_map(|suffix| &suffix.0) {
            self.item(item, &mut simple, Place::Argument)?;
        }
        Ok(Some(simple))
    }

    fn item(&mut self, item: &Item, simple: &mut Simple, place: Place) -> Result<(), Undecided> {
        match item {
            Item::IoRedirect(redirect) => self.redirect(redirect, simple)?,
            Item::Word(word) => simple.words.extend(self.words(word)?),
            Item::AssignmentWord(assignment, word) => {
                match &assignment.value {
                    AssignmentValue::Scalar(value) => drop(self.word(value)?),
                    AssignmentValue::Array(values) => {
                        for (key, value) in values {
                            key.iter().try_for_each(|key| self.word(key).map(drop))?;
                            self.word(value)?;
                        }
                    }
                }
                if place == Place::Argument {
                    let word = self.word(word)?;
                    simple.words.push(word);
                }
            }
            Item::ProcessSubstitution(_, subshell) => {
                self.subshell(subshell)?;
                simple.words.push(Word::unknown());
            }
        }
        Ok(())
    }

    fn subshell(&mut self, subshell: &SubshellCommand) -> Result<(), Undecided> {
        self.list(&subshell.list)
    }

    /// Those of something that has several commands in it.
    fn redirects(&mut self, redirects: Option<&RedirectList>) -> Result<Option<Simple>, Undecided> {
        let Some(redirects) = redirects else { return Ok(None) };
        let mut simple = Simple::default();
        redirects.0.iter().try_for_each(|redirect| self.redirect(redirect, &mut simple))?;
        Ok(Some(simple))
    }

    fn redirect(&mut self, redirect: &IoRedirect, simple: &mut Simple) -> Result<(), Undecided> {
        match redirect {
            IoRedirect::File(_, kind, target) => match target {
                IoFileRedirectTarget::Filename(word) => {
                    let word = self.word(word)?;
                    if !matches!(
                        kind,
                        IoFileRedirectKind::Read | IoFileRedirectKind::DuplicateInput
                    ) {
                        simple.writes.push(word);
                    }
                }
                IoFileRedirectTarget::ProcessSubstitution(_, subshell) => {
                    self.subshell(subshell)?;
                    if matches!(kind, IoFileRedirectKind::Read) {
                        simple.input = Some(Word::unknown());
                    }
                }
                IoFileRedirectTarget::Duplicate(word) => drop(self.word(word)?),
                IoFileRedirectTarget::Fd(_) => {}
            },
            IoRedirect::HereDocument(_, document) => {
                let text = &document.doc.value;
                simple.input = Some(match document.requires_expansion {
                    true => self.inner(text)?,
                    false => Word::known(text),
                });
            }
            IoRedirect::HereString(_, word) => simple.input = Some(self.word(word)?),
            IoRedirect::OutputAndError(word, _) => {
                let word = self.word(word)?;
                simple.writes.push(word);
            }
        }
        Ok(())
    }

    fn all<'a>(&mut self, words: impl IntoIterator<Item = &'a AstWord>) -> Result<(), Undecided> {
        words.into_iter().try_for_each(|word| self.word(word).map(drop))
    }

    /// One of a command, which braces may make several of.
    fn words(&mut self, word: &AstWord) -> Result<Vec<Word>, Undecided> {
        match expanded(&word.value) {
            Braces::Plain => Ok(vec![self.inner(&word.value)?]),
            Braces::Words(words) => words.iter().map(|word| self.inner(word)).collect(),
            Braces::Unknown => self.word(word).map(|word| vec![word]),
        }
    }

    fn word(&mut self, word: &AstWord) -> Result<Word, Undecided> {
        let read = self.inner(&word.value)?;
        Ok(match expanded(&word.value) {
            Braces::Plain => read,
            Braces::Words(_) | Braces::Unknown => Word::unknown(), // it becomes several words
        })
    }

    fn inner_text(&mut self, text: &str) -> Result<(), Undecided> {
        self.inner(text).map(drop)
    }

    fn inner(&mut self, text: &str) -> Result<Word, Undecided> {
        let mut word = Word::default();
        if !text.contains(['\\', '\'', '"', '$', '`', '~', '<', '>']) {
            word.push(text);
            return Ok(word);
        }
        let marks = ["$(", "${", "`", "<(", ">("];
        if marks.iter().map(|mark| text.matches(mark).count()).sum::<usize>() > MOST_SUBSTITUTIONS {
            return undecided("a word has too many substitutions in it to be read");
        }
        let pieces = brush_parser::word::parse(text, &options())
            .map_err(|_| Undecided("a word cannot be read".to_owned()))?;
        self.pieces(&pieces, text, &mut word)?;
        Ok(word)
    }

    fn pieces(
        &mut self,
        pieces: &[WordPieceWithSource],
        source: &str,
        word: &mut Word,
    ) -> Result<(), Undecided> {
        for piece in pieces {
            match &piece.piece {
                WordPiece::Text(text) | WordPiece::SingleQuotedText(text) => word.push(text),
                WordPiece::AnsiCQuotedText(text) => word.push(&ansi::undone(text)),
                WordPiece::DoubleQuotedSequence(inner)
                | WordPiece::GettextDoubleQuotedSequence(inner) => {
                    self.pieces(inner, source, word)?;
                }
                WordPiece::TildePrefix(user) => {
                    word.push("~");
                    word.push(user);
                }
                WordPiece::EscapeSequence(text) => {
                    let plain = text.strip_prefix('\\').unwrap_or(text);
                    word.push(if plain == "\n" { "" } else { plain });
                }
                WordPiece::CommandSubstitution(text) => {
                    self.text(text)?;
                    word.push_unknown();
                }
                WordPiece::BackquotedCommandSubstitution(text) => {
                    self.text(&text.replace("\\`", "`").replace("\\$", "$").replace("\\\\", "\\"))?;
                    word.push_unknown();
                }
                WordPiece::ArithmeticExpression(expression) => {
                    self.inner_text(&expression.value)?;
                    word.push_unknown();
                }
                WordPiece::ParameterExpansion(expression) => {
                    if is_home(expression) {
                        word.push("~");
                        continue;
                    }
                    word.push_unknown();
                    let text = source.get(piece.start_index..piece.end_index).unwrap_or(source);
                    if let Some(inner) =
                        text.strip_prefix("${").and_then(|text| text.strip_suffix('}'))
                        && inner.contains(['$', '`'])
                    {
                        self.inner_text(inner)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn is_home(expression: &ParameterExpr) -> bool {
    matches!(expression, ParameterExpr::Parameter { parameter: Parameter::Named(name), indirect: false } if name == "HOME")
}
