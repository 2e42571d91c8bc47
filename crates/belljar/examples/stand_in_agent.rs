//! A fake agent for tests: prints the format of claude, codex or gemini, and executes its prompt line by line.
//!
//! Its program name (`…/claude`) or `--speak KIND` selects the format. It accepts the arguments that belljar passes, reads
//! its prompt from standard input, and stores its session where the real agent does. A line of the prompt is one of:
//!
//! ```text
//! say TEXT            think TEXT           tool NAME INPUT       run COMMAND…
//! write PATH TEXT     append PATH TEXT     remove PATH           count FILE
//! done-when FILE N TEXT   (writes nothing, says TEXT, once the number in FILE is N)
//! cost DOLLARS        tokens IN OUT        turns N               lie-cost WORD
//! sleep SECONDS       hang                 crash                 exit CODE
//! flood MEGABYTES     long-line MEGABYTES  garbage               error TEXT
//! ```
//!
//! Any other line is ignored. On a terminal it asks for commands instead, as the real agents' own interfaces do.

use std::error::Error;
use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use serde_json::{Value, json};

#[derive(Clone, Copy, PartialEq)]
enum Speaks {
    Claude,
    Codex,
    Gemini,
}

/// Whether the previous content of a file is kept.
enum Before {
    Kept,
    Dropped,
}

/// The usage of a session, stored in its file.
#[derive(Clone, Copy, Default)]
struct Used {
    cost: f64,
    input: u64,
    output: u64,
    turns: u64,
}

struct Agent {
    speaks: Speaks,
    session: String,
    file: PathBuf,
    before: Used,
    now: Used,
    calls: u64,
    last: String,
    lie: Option<Value>,
    error: Option<String>,
    code: u8,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        return on_a_terminal(&words);
    }
    let mut prompt = String::new();
    std::io::stdin().read_to_string(&mut prompt)?;
    let mut agent = Agent::new(&words)?;
    agent.begin()?;
    for line in prompt.lines() {
        let (verb, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        agent.follow(verb, rest.trim())?;
    }
    agent.end()?;
    Ok(ExitCode::from(agent.code))
}

/// Its interface for people: `env NAME`, `read FILE`, `write FILE TEXT` and `quit CODE`, each answered in plain text.
#[allow(clippy::print_stdout, reason = "a program of its own, for tests")]
fn on_a_terminal(words: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    println!("ready: {}", words[1..].join(" "));
    for line in std::io::stdin().lines() {
        let line = line?;
        let (verb, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        match verb {
            "env" => println!("{rest} is {:?}", std::env::var(rest)),
            "read" => println!("{rest} has {:?}", std::fs::read_to_string(rest)),
            "write" => {
                let (path, text) = rest.split_once(' ').unwrap_or((rest, ""));
                std::fs::write(path, text)?;
                println!("wrote {path}");
            }
            "quit" => return Ok(ExitCode::from(rest.parse::<u8>()?)),
            _ => println!("what is {line:?}?"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn after<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == name)?;
    words.get(at + 1).map(String::as_str)
}

fn speaks(words: &[String]) -> Result<Speaks, Box<dyn Error>> {
    let own = words.first().map(String::as_str).unwrap_or_default();
    let name = after(words, "--speak").unwrap_or(own);
    [("claude", Speaks::Claude), ("codex", Speaks::Codex), ("gemini", Speaks::Gemini)]
        .into_iter()
        .find(|(ending, _)| name.ends_with(ending))
        .map(|(_, speaks)| speaks)
        .ok_or_else(|| format!("{name}: speak as claude, codex or gemini?").into())
}

impl Agent {
    fn new(words: &[String]) -> Result<Self, Box<dyn Error>> {
        let speaks = speaks(words)?;
        let variable = |name: &str, default: &str| {
            let home = std::env::var("HOME").unwrap_or_default();
            std::env::var(name).map_or_else(|_| PathBuf::from(home).join(default), PathBuf::from)
        };
        let (directory, resumed) = match speaks {
            Speaks::Claude => (variable("CLAUDE_CONFIG_DIR", ".claude"), after(words, "--resume")),
            Speaks::Codex => {
                let resumed = after(words, "resume").or_else(|| after(words, "fork"));
                (variable("CODEX_HOME", ".codex"), resumed)
            }
            Speaks::Gemini => (variable("GEMINI_CLI_HOME", ".gemini"), after(words, "--resume")),
        };
        if speaks == Speaks::Codex && !directory.is_dir() {
            return Err(format!("CODEX_HOME {} is not there", directory.display()).into());
        }
        let needed: &[&str] = match speaks {
            Speaks::Claude => &["-p", "stream-json", "--verbose"],
            Speaks::Codex => &["exec", "--json", "-"],
            Speaks::Gemini => &["stream-json"],
        };
        if let Some(missing) = needed.iter().find(|need| !words.iter().any(|word| word == *need)) {
            return Err(format!("called without {missing}").into());
        }
        // Pids repeat across sandboxes.
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
        let made = || format!("5e550000-0000-4000-{:04x}-{:012x}", now >> 48, now << 16 >> 16);
        let forks = words.iter().any(|word| word == "--fork-session" || word == "fork");
        let session = match resumed {
            Some(id) if !forks => id.to_owned(),
            _ => after(words, "--session-id").map_or_else(made, str::to_owned),
        };
        let sessions = directory.join("stand-in");
        std::fs::create_dir_all(&sessions)?;
        let before = match resumed {
            Some(id) => Used::load(&sessions.join(id))?,
            None => Used::default(),
        };
        Ok(Self {
            speaks,
            file: sessions.join(&session),
            session,
            before,
            now: Used::default(),
            calls: 0,
            last: String::new(),
            lie: None,
            error: None,
            code: 0,
        })
    }

    fn begin(&mut self) -> std::io::Result<()> {
        let id = &self.session;
        match self.speaks {
            Speaks::Claude => print(&json!({
                "type": "system", "subtype": "init", "session_id": id, "model": "stand-in", "tools": ["Bash"],
            })),
            Speaks::Codex => {
                print(&json!({ "type": "thread.started", "thread_id": id }))?;
                print(&json!({ "type": "turn.started" }))
            }
            Speaks::Gemini => {
                print(&json!({ "type": "init", "session_id": id, "model": "stand-in" }))
            }
        }
    }

    fn follow(&mut self, verb: &str, rest: &str) -> Result<(), Box<dyn Error>> {
        let (first, text) = rest.split_once(' ').unwrap_or((rest, ""));
        match verb {
            "say" => self.say("text", rest)?,
            "think" => self.say("thinking", rest)?,
            "tool" => self.tool(first, text, "", 0)?,
            "write" => self.change(first, &format!("{text}\n"), Before::Dropped)?,
            "append" => self.change(first, &format!("{text}\n"), Before::Kept)?,
            "remove" => {
                std::fs::remove_file(rest)?;
                self.tool("remove", rest, "", 0)?;
            }
            "run" => {
                let words: Vec<&str> = rest.split_whitespace().collect();
                let (program, args) = words.split_first().ok_or("run what?")?;
                let done = Command::new(program).args(args).output()?;
                let output = String::from_utf8_lossy(&done.stdout).into_owned();
                self.tool("Bash", rest, &output, done.status.code().unwrap_or(-1))?;
            }
            "count" => {
                let number = counted(rest) + 1;
                self.change(rest, &format!("{number}\n"), Before::Dropped)?;
            }
            "done-when" => {
                let (number, text) = text.split_once(' ').ok_or("done-when FILE N TEXT")?;
                if counted(first) >= number.parse()? {
                    self.say("text", text)?;
                }
            }
            "cost" => self.now.cost += rest.parse::<f64>()?,
            "tokens" => {
                self.now.input += first.parse::<u64>()?;
                self.now.output += text.trim().parse::<u64>()?;
            }
            "turns" => self.now.turns = rest.parse()?,
            "lie-cost" => {
                let lie = rest.parse::<f64>().ok().filter(|cost| cost.is_finite());
                self.lie = Some(lie.map_or_else(|| json!(rest), |cost| json!(cost)));
            }
            "sleep" => std::thread::sleep(Duration::from_secs_f64(rest.parse()?)),
            "hang" => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            "crash" => {
                self.keep()?;
                std::process::abort();
            }
            "exit" => self.code = rest.parse()?,
            "flood" => {
                for _ in 0..rest.parse::<usize>()? * 1024 {
                    self.say("text", &"flood ".repeat(170))?;
                }
            }
            "long-line" => self.say("text", &"x".repeat(rest.parse::<usize>()? << 20))?,
            "garbage" => {
                let mut out = std::io::stdout().lock();
                out.write_all(b"npm warn deprecated\n{\"type\":\n[]\n\xff\xfe\x00\n")?;
            }
            "error" => self.error = Some(rest.to_owned()),
            _ => {}
        }
        Ok(())
    }

    fn say(&mut self, kind: &str, text: &str) -> std::io::Result<()> {
        if kind == "text" {
            self.last = text.to_owned();
        }
        match self.speaks {
            Speaks::Claude => self.message(&json!({ "type": kind, kind: text })),
            Speaks::Codex => {
                let item = if kind == "text" { "agent_message" } else { "reasoning" };
                self.item("item.completed", json!({ "type": item, "text": text }))
            }
            // This format has no thoughts.
            Speaks::Gemini if kind == "thinking" => Ok(()),
            Speaks::Gemini => print(&json!({
                "type": "message", "role": "assistant", "content": text, "delta": true,
            })),
        }
    }

    /// A tool call that completes at once.
    fn tool(&mut self, name: &str, input: &str, output: &str, code: i32) -> std::io::Result<()> {
        self.calls += 1;
        let id = format!("call_{}", self.calls);
        match self.speaks {
            Speaks::Claude => {
                self.message(&json!({
                    "type": "tool_use", "id": id, "name": name, "input": { "command": input },
                }))?;
                let result = json!({
                    "type": "tool_result", "tool_use_id": id, "content": output, "is_error": code != 0,
                });
                print(
                    &json!({ "type": "user", "message": { "role": "user", "content": [result] } }),
                )
            }
            Speaks::Codex => {
                let command = format!("{name} {input}");
                let item = json!({ "type": "command_execution", "command": command });
                self.item("item.started", item.clone())?;
                let mut item = item;
                item["aggregated_output"] = json!(output);
                item["exit_code"] = json!(code);
                item["status"] = json!(if code == 0 { "completed" } else { "failed" });
                self.item("item.completed", item)
            }
            Speaks::Gemini => {
                print(&json!({
                    "type": "tool_use", "tool_name": name, "tool_id": id, "parameters": { "command": input },
                }))?;
                let status = if code == 0 { "success" } else { "error" };
                print(&json!({
                    "type": "tool_result", "tool_id": id, "status": status, "output": output,
                }))
            }
        }
    }

    fn message(&self, block: &Value) -> std::io::Result<()> {
        let usage = json!({ "input_tokens": self.now.input, "output_tokens": 0 });
        // One message of the model, printed block by block.
        let id = format!("msg_{}_{}", std::process::id(), self.calls);
        let usage = if self.calls == 0 { usage } else { json!({}) };
        let message = json!({ "id": id, "role": "assistant", "content": [block], "usage": usage });
        print(&json!({ "type": "assistant", "message": message, "parent_tool_use_id": null }))
    }

    fn item(&self, kind: &str, mut item: Value) -> std::io::Result<()> {
        item["id"] = json!(format!("item_{}", self.calls));
        print(&json!({ "type": kind, "item": item }))
    }

    fn change(&mut self, path: &str, text: &str, before: Before) -> Result<(), Box<dyn Error>> {
        if let Some(parent) = std::path::Path::new(path).parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mut options = std::fs::OpenOptions::new();
        match before {
            Before::Kept => options.append(true),
            Before::Dropped => options.write(true).truncate(true),
        };
        options.create(true).open(path)?.write_all(text.as_bytes())?;
        Ok(self.tool("write", path, "", 0)?)
    }

    fn keep(&self) -> std::io::Result<()> {
        self.before.plus(&self.now).save(&self.file)
    }

    fn end(&mut self) -> std::io::Result<()> {
        self.now.turns = self.now.turns.max(self.calls + 1);
        self.keep()?;
        let all = self.before.plus(&self.now);
        match self.speaks {
            Speaks::Claude => print(&json!({
                "type": "result",
                "subtype": "success",
                "is_error": self.error.is_some(),
                "num_turns": all.turns,
                "result": self.error.as_ref().unwrap_or(&self.last),
                "session_id": self.session,
                "total_cost_usd": self.lie.clone().unwrap_or(json!(all.cost)),
                "usage": { "input_tokens": all.input, "output_tokens": all.output },
            })),
            Speaks::Codex => match &self.error {
                Some(error) => {
                    print(&json!({ "type": "turn.failed", "error": { "message": error } }))
                }
                None => {
                    let usage = json!({
                        "input_tokens": all.input, "cached_input_tokens": 0, "output_tokens": all.output,
                    });
                    print(&json!({ "type": "turn.completed", "usage": usage }))
                }
            },
            Speaks::Gemini => {
                let stats = json!({
                    "total_tokens": self.now.input + self.now.output,
                    "input_tokens": self.now.input,
                    "output_tokens": self.now.output,
                });
                let mut result = json!({ "type": "result", "status": "success", "stats": stats });
                if let Some(error) = &self.error {
                    result["status"] = json!("error");
                    result["error"] = json!({ "type": "Error", "message": error });
                }
                print(&result)
            }
        }
    }
}

impl Used {
    fn plus(&self, more: &Self) -> Self {
        Self {
            cost: self.cost + more.cost,
            input: self.input + more.input,
            output: self.output + more.output,
            turns: self.turns + more.turns,
        }
    }

    fn load(file: &std::path::Path) -> Result<Self, Box<dyn Error>> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("no session {}: {error}", file.display()))?;
        let kept: Value = serde_json::from_str(&text)?;
        let number = |key: &str| kept[key].as_u64().unwrap_or_default();
        Ok(Self {
            cost: kept["cost"].as_f64().unwrap_or_default(),
            input: number("input"),
            output: number("output"),
            turns: number("turns"),
        })
    }

    fn save(&self, file: &std::path::Path) -> std::io::Result<()> {
        let kept = json!({
            "cost": self.cost, "input": self.input, "output": self.output, "turns": self.turns,
        });
        std::fs::write(file, kept.to_string())
    }
}

fn counted(file: &str) -> u64 {
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn print(line: &Value) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
