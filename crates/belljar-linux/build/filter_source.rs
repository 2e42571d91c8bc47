//! Reads a filter file and turns it into two programs for the kernel. Runs at build time only.
//!
//! Two, because one program has one answer for what matches and one for what does not, and there are
//! three: let through, EPERM, ENOSYS. The kernel asks both and takes the stricter answer.

use std::collections::BTreeSet;

use seccompiler::{BpfProgram, TargetArch, sock_filter};
use serde_json::{Value, json};

pub(crate) struct Compiled {
    /// Lets through what either word names; ENOSYS for the rest; ends x32 callers.
    pub(crate) allow: Vec<u8>,
    /// EPERM for what `deny` names; lets the rest through.
    pub(crate) deny: Vec<u8>,
}

pub(crate) fn compile(source: &str, arch: &str) -> Result<Compiled, String> {
    let target = TargetArch::try_from(arch).map_err(|error| error.to_string())?;
    let mut known = BTreeSet::new();
    let mut denied = Vec::new();
    for (at, line) in source.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', '[']) {
            continue;
        }
        read_line(line, arch, &mut known, &mut denied)
            .map_err(|problem| format!("line {}: {problem}", at + 1))?;
    }
    let allowed: Vec<Value> = known.iter().map(|name| json!({ "syscall": name })).collect();
    let allow = program(target, "errno", 38, "allow", allowed)?;
    let deny = program(target, "allow", 0, "errno", denied)?;
    Ok(Compiled { allow: bytes(&with_x32_check(allow, arch)), deny: bytes(&deny) })
}

fn read_line(
    line: &str,
    arch: &str,
    known: &mut BTreeSet<String>,
    denied: &mut Vec<Value>,
) -> Result<(), String> {
    let mut words = line.split_whitespace().peekable();
    if let Some(only) = words.peek().and_then(|word| word.strip_prefix('@')) {
        if only != arch {
            return Ok(());
        }
        words.next();
    }
    let verb = words.next().unwrap_or_default();
    let rest: Vec<&str> = words.collect();
    let (names, conditions) = match rest.iter().position(|word| *word == "when") {
        Some(at) => (&rest[..at], Some(rest[at + 1..].join(" "))),
        None => (&rest[..], None),
    };
    if names.is_empty() {
        return Err("names no call".to_owned());
    }
    known.extend(names.iter().map(|name| (*name).to_owned()));
    match (verb, conditions) {
        ("allow", None) => {}
        ("deny", None) => denied.extend(names.iter().map(|name| json!({ "syscall": name }))),
        ("deny", Some(text)) => {
            let args = text.split(" and ").map(condition).collect::<Result<Vec<_>, _>>()?;
            denied.extend(names.iter().map(|name| json!({ "syscall": name, "args": args })));
        }
        (other, _) => return Err(format!("\"{other}\" is neither allow nor deny")),
    }
    Ok(())
}

/// `arg0 == 1`, `arg0 != 1`, `arg1 & 0xf == 3`, `arg1 & 0o4000`, each with `:64` after the index.
fn condition(text: &str) -> Result<Value, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (index, width) = match words.first().and_then(|word| word.strip_prefix("arg")) {
        Some(index) => match index.strip_suffix(":64") {
            Some(index) => (index, "qword"),
            None => (index, "dword"),
        },
        None => return Err(format!("\"{text}\" does not start with an argument")),
    };
    let index: u8 = index.parse().map_err(|_| format!("\"{text}\" has no argument number"))?;
    let (op, value) = match words[1..] {
        ["==", value] => (json!("eq"), number(value)?),
        ["!=", value] => (json!("ne"), number(value)?),
        ["&", mask, "==", value] => (json!({ "masked_eq": number(mask)? }), number(value)?),
        ["&", mask] => (json!({ "masked_eq": number(mask)? }), number(mask)?),
        _ => return Err(format!("\"{text}\" is no condition")),
    };
    Ok(json!({ "index": index, "type": width, "op": op, "val": value }))
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(hex), _) => u64::from_str_radix(hex, 16),
        (None, Some(octal)) => u64::from_str_radix(octal, 8),
        (None, None) => text.parse(),
    };
    parsed.map_err(|_| format!("\"{text}\" is no number"))
}

fn program(
    target: TargetArch,
    otherwise: &str,
    errno: u32,
    matched: &str,
    filter: Vec<Value>,
) -> Result<BpfProgram, String> {
    let action = |name: &str, errno: u32| match name {
        "errno" => json!({ "errno": errno }),
        plain => json!(plain),
    };
    let source = json!({ "filter": {
        "mismatch_action": action(otherwise, errno),
        "match_action": action(matched, 1),
        "filter": filter,
    } });
    let mut programs = seccompiler::compile_from_json(source.to_string().as_bytes(), target)
        .map_err(|error| error.to_string())?;
    programs.remove("filter").ok_or_else(|| "no program came out".to_owned())
}

/// x32 calls have the 64-bit mode's architecture and a high bit in their number: an allow-list of
/// numbers would answer them, but a program that tries them is up to no good.
fn with_x32_check(program: BpfProgram, arch: &str) -> BpfProgram {
    if arch != "x86_64" {
        return program;
    }
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const KILL_PROCESS: u32 = 0x8000_0000;
    const X32_BIT: u32 = 0x4000_0000;
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let mut checked = vec![
        instruction(LOAD_WORD, 0, 0, 0),
        // A debugger that cancels a call sets its number to -1.
        instruction(JUMP_IF_EQUAL, 2, 0, u32::MAX),
        instruction(JUMP_IF_AT_LEAST, 0, 1, X32_BIT),
        instruction(RETURN, 0, 0, KILL_PROCESS),
    ];
    checked.extend(program);
    checked
}

fn bytes(program: &[sock_filter]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for instruction in program {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    bytes
}
