//! Lists all simple commands of a shell script, wherever they are nested.

use brush_parser::ast::{
    AndOr, AssignmentValue, Command, CommandPrefixOrSuffixItem as Item, CompoundCommand,
    CompoundList, ExtendedTestExpr, FunctionBody, IoFileRedirectKind, IoFileRedirectTarget,
    IoRedirect, Pipeline, RedirectList, SimpleCommand, SubshellCommand, Word as AstWord,
};
use brush_parser::word::{Parameter, ParameterExpr, WordPiece, WordPieceWithSource};

use super::ansi_escapes;
use super::braces::{Braces, expanded};
use super::parse::{Undecided, options, parse, undecided};
use super::word::Word;

/// Substitutions in one word, which the parser backtracks over.
const MAX_SUBSTITUTIONS: usize = 10;
/// Each nesting level of pipelines doubles them.
const MAX_COPIED: usize = 5_000;
/// Nesting of substitutions.
const MAX_TEXT_DEPTH: usize = 6;

/// The commands of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) pipelines: Vec<Vec<Simple>>,
    /// The name of a function that starts itself twice.
    pub(crate) bomb: Option<String>,
}

/// One command with its words, the program first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Simple {
    pub(crate) words: Vec<Word>,
    /// Files that it writes to.
    pub(crate) writes: Vec<Word>,
    /// Its input, if it is part of the script.
    pub(crate) input: Option<Word>,
}

pub(crate) fn read(text: &str) -> Result<Script, Undecided> {
    let mut walk = ScriptWalk { script: Script::default(), depth: 0, copied: 0 };
    walk.text(text)?;
    Ok(walk.script)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WordPosition {
    BeforeProgram,
    Argument,
}

struct ScriptWalk {
    script: Script,
    depth: usize,
    /// Commands that were copied into an enclosing pipeline.
    copied: usize,
}

impl ScriptWalk {
    fn text(&mut self, text: &str) -> Result<(), Undecided> {
        if self.depth >= MAX_TEXT_DEPTH {
            return undecided("scripts are nested too deeply");
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
                    // Its commands are part of this pipeline too; on their own they are listed already.
                    if pipeline.seq.len() > 1 || redirects.is_some() {
                        let inner = self.script.pipelines[before..].iter().flatten();
                        self.copied += inner.clone().count();
                        if self.copied > MAX_COPIED {
                            return undecided("pipelines are nested too deeply");
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
                        let is_recursive = |one: &&Simple| {
                            one.words.first().is_some_and(|word| word.raw() == name)
                        };
                        pipeline.iter().filter(is_recursive).count() > 1
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
            self.item(item, &mut simple, WordPosition::BeforeProgram)?;
        }
        if let Some(program) = &command.word_or_name {
            simple.words.extend(self.words(program)?);
        }
        for item in command.suffix.iter().flat_map(|suffix| &suffix.0) {
            self.item(item, &mut simple, WordPosition::Argument)?;
        }
        Ok(Some(simple))
    }

    fn item(
        &mut self,
        item: &Item,
        simple: &mut Simple,
        place: WordPosition,
    ) -> Result<(), Undecided> {
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
                if place == WordPosition::Argument {
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

    /// The redirects of a compound command.
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

    /// A word of a command, which brace expansion may turn into several.
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
        if marks.iter().map(|mark| text.matches(mark).count()).sum::<usize>() > MAX_SUBSTITUTIONS {
            return undecided("a word contains too many substitutions");
        }
        let pieces = brush_parser::word::parse(text, &options())
            .map_err(|_| Undecided("a word cannot be parsed".to_owned()))?;
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
                WordPiece::AnsiCQuotedText(text) => word.push(&ansi_escapes::unescape(text)),
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
