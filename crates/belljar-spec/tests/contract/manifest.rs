//! Manifests: what is read, and the errors for what cannot be.

use belljar_spec::manifest::{AgentKind, Limit, MountEntry, WorkspaceMode};
use belljar_spec::{HumanDuration, Manifest, ManifestError, MountMode, Size};

fn parse(text: &str) -> Result<Manifest, ManifestError> {
    Manifest::parse(text.as_bytes(), &"belljar.toml".into())
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

const EXAMPLE: &str = r#"
[sandbox]
backend   = "auto"
workspace = { path = ".", mode = "overlay", target = "/workspace" }
rootfs    = "host"
tools     = ["~/.cargo"]
mounts    = [{ source = "data", target = "/workspace/data", mode = "ro" }]
hide      = [".env"]
pass_env  = ["TERM"]
[network]
allow = ["api.anthropic.com:443"]
[[secret]]
env = "ANTHROPIC_API_KEY"
host = "api.anthropic.com"
header = "x-api-key"
[[route]]
listen = 8080
to = "https://api.anthropic.com"
secret = "ANTHROPIC_API_KEY"
[limits]
memory = "8g"
time = "10h"
[policy]
require = ["limit.memory"]
waive = { "fs.quota" = "scratch disk, nobody else on it" }
[agent]
kind = "claude"
prompt_file = "PROMPT.md"
[loop]
max_iterations = 100
max_cost_usd = 25.0
until = { file = "DONE" }
[service.db]
command = ["redis-server", "--port", "6379"]
ready = { tcp = 6379, within = "30s" }
[setup]
command = ["npm", "ci"]
network = ["packages.example"]
[commands]
mode = "warn"
deny = ["rm -rf /", { rule = "git push", match = ["git push -f"], no_match = ["git pull"] }]
[retention]
sandboxes = 5
runs = 200
"#;

#[test]
fn every_section_is_kept_as_data() {
    let manifest = parse(EXAMPLE).unwrap();
    assert_eq!(manifest.sandbox.workspace.mode, Some(WorkspaceMode::Overlay));
    let mount = MountEntry {
        source: "data".into(),
        target: "/workspace/data".into(),
        mode: Some(MountMode::Ro),
    };
    assert_eq!(manifest.sandbox.mounts.as_ref().unwrap().0, [mount]);
    assert_eq!(manifest.limits.memory, Some(Limit::At(Size(8 << 30))));
    assert_eq!(manifest.limits.time, Some(Limit::At(HumanDuration::from_secs(36_000))));
    assert_eq!(manifest.agent.kind, Some(AgentKind::Claude));
    assert_eq!(manifest.r#loop.max_iterations, Some(100));
    let service = &manifest.service.as_ref().unwrap()["db"];
    assert_eq!(service.ready.as_ref().unwrap().tcp, Some(6379));
    assert_eq!(manifest.secret.as_ref().unwrap().0[0].header.as_deref(), Some("x-api-key"));
    assert_eq!(manifest.route.as_ref().unwrap().0[0].listen, 8080);
    assert_eq!(manifest.commands.deny.as_ref().unwrap()[1].matches, ["git push -f"]);
    assert_eq!(manifest.retention.runs, Some(200));
    assert_eq!(parse(&manifest.to_toml()), Ok(manifest));
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_the_nearest() {
    let text = "[limits]\npids = 10\n  memroy = \"8g\"\n";
    let wrong = parse(text).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "belljar.toml:3:3: limits.memroy: unknown key \"memroy\"; did you mean \"memory\"?"
    );
    assert_eq!(wrong.key, "limits.memroy");
    assert!(parse("[limits]\npids = 10\n  memory = \"8g\"\n").is_ok());
}

#[test]
fn unknown_keys_are_found_at_every_depth() {
    let cases = [
        ("[limit]\n", "belljar.toml:1:2: limit: unknown key \"limit\"; did you mean \"limits\"?"),
        (
            "sandbox.workspace.mod = 1\n",
            "1:19: sandbox.workspace.mod: unknown key \"mod\"; did you mean \"mode\"?",
        ),
        (
            "[[secret]]\nenv = 'A'\nhost = 'h'\nheadr = 'x'\n",
            "4:1: secret.headr: unknown key \"headr\"; did you mean \"header\"?",
        ),
        (
            "[sandbox]\nmounts = [{ src = 'a', target = '/b' }]\n",
            "2:13: sandbox.mounts.src: unknown key \"src\"; did you mean \"source\"?",
        ),
        (
            "[service.db]\ncommand = ['a']\nredy = {}\n",
            "3:1: service.db.redy: unknown key \"redy\"; did you mean \"ready\"?",
        ),
    ];
    for (text, want) in cases {
        let found = error(text);
        assert!(found.ends_with(want), "{found}");
    }
}

#[test]
fn a_key_in_the_wrong_section_is_sent_to_the_right_one() {
    assert!(error("memory = '8g'\n").contains("did you mean limits.memory?"));
    assert!(error("[network]\nmounts = []\n").contains("did you mean sandbox.mounts?"));
}

#[test]
fn a_key_like_nothing_gets_the_list() {
    assert!(
        error("[network]\nxyzzyqwertz = 1\n").contains("the keys here are allow, allow_private")
    );
}

#[test]
fn wrong_types_and_values_are_told_with_the_line() {
    let cases = [
        ("[network]\npublish = ['x']\n", "belljar.toml:2:12: network.publish: \"x\" names no port"),
        (
            "[sandbox]\nimage = 5\n",
            "2:9: sandbox.image: expected a string (in quotes), found an integer",
        ),
        ("[network]\nallow = 'a'\n", "2:9: network.allow: expected a list"),
        ("[limits]\nmemory = '8q'\n", "2:10: limits.memory: \"8q\" has the unknown unit \"q\""),
        ("[limits]\npids = 0\n", "2:8: limits.pids: a limit of 0 would stop everything"),
        ("[limits]\npids = -1\n", "2:8: limits.pids: -1 is not between 0 and"),
        ("[limits]\ntime = true\n", "2:8: limits.time: expected a duration"),
        ("[sandbox]\nbackend = 'jial'\n", "sandbox.backend: there is no backend \"jial\""),
        ("[sandbox]\nuser = 0\n", "sandbox.user: user \"0\" is root"),
        ("[sandbox]\nuser = '1000:0'\n", "is root"),
        ("[sandbox]\nname = '-x'\n", "sandbox.name: \"-x\" is not a valid name"),
        ("[sandbox]\nhide = ['../x']\n", "sandbox.hide: \"../x\" must be a name in the workspace"),
        ("[sandbox]\npass_env = ['A=B']\n", "sandbox.pass_env: \"A=B\" is not a variable name"),
        (
            "[sandbox]\nenv = { A = 1 }\n",
            "2:13: sandbox.env.A: expected a string (in quotes), found an integer",
        ),
        ("[sandbox]\nmounts = [{ source = 'a' }]\n", "sandbox.mounts: \"target\" is missing here"),
        ("[sandbox]\ntmpfs = ['/x:size=big']\n", "sandbox.tmpfs: \"/x:size=big\""),
        ("[policy]\nrequire = ['fs.quotas']\n", "did you mean \"fs.quota\"?"),
        ("[policy]\nwaive = { 'fs.quota' = ' ' }\n", "the waiver of fs.quota has no reason"),
        ("[policy]\nwaive.fs.quota = 'x'\n", "a clause's name needs quotes"),
        ("[agent]\ncommand = []\n", "agent: command is empty"),
        ("[loop]\nuntil = { says = ' ' }\n", "says is empty"),
        ("[loop]\nuntil = { file = 'D', timeout = '1m' }\n", "timeout limits a command"),
        ("[loop]\nmax_failures = 0\n", "max_failures = 0"),
        (
            "[agent]\nprompt = 'a'\nprompt_file = 'b'\n",
            "agent: prompt and prompt_file are both set",
        ),
        ("[loop]\nuntil = {}\n", "loop.until: until needs exactly one of"),
        ("[loop]\nuntil = { file = '/etc/x' }\n", "must be in the workspace"),
        ("[loop]\nmax_cost_usd = -1.0\n", "loop.max_cost_usd: an amount must be 0 or more"),
        ("[loop]\nmax_cost_usd = nan\n", "loop.max_cost_usd: an amount must be 0 or more"),
        ("[[secret]]\nenv = 'A'\n", "secret: \"host\" is missing here"),
        (
            "[[secret]]\nenv = 'A'\nhost = 'h'\nheader = 'x'\nbearer = true\n",
            "a secret goes to one place",
        ),
        (
            "[[secret]]\nenv = 'A'\nhost = 'h'\nheader = 'x'\nfile = 'x'\ncommand = ['y']\n",
            "a secret has exactly one source",
        ),
        ("[[secret]]\nenv = 'A'\nhost = 'h'\n", "a secret needs its place in a request"),
        ("[[secret]]\nenv = 'A'\nhost = 'h'\nbearer = false\n", "bearer = false has no effect"),
        ("[[route]]\nlisten = 70000\nto = 'x'\n", "route.listen: 70000 is not between 0 and 65535"),
        ("[service.x]\ncommand = []\n", "service.x: command is empty"),
    ];
    for (text, want) in cases {
        let found = error(text);
        assert!(found.starts_with("belljar.toml:"), "{found}");
        assert!(found.contains(want), "{found}\nwanted {want}");
    }
}

#[test]
fn what_is_no_toml_is_told_with_the_line() {
    assert!(
        error("[limits]\nmemory = \n").starts_with("belljar.toml:2:"),
        "{}",
        error("[limits]\nmemory = \n")
    );
    assert!(error("[limits]\npids = 1\npids = 2\n").starts_with("belljar.toml:3:"));
    let bytes = Manifest::parse(b"# \xff", &"m".into()).unwrap_err();
    assert_eq!(bytes.to_string(), "m:1:3: the file is not UTF-8");
}

#[test]
fn deep_nesting_is_an_error_and_no_crash() {
    let deep = format!("[sandbox]\nimage = {}{}\n", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(&deep).is_err());
    let tables = format!("[{}]\n", ["a"; 50_000].join("."));
    assert!(parse(&tables).is_err());
}

#[test]
fn a_limit_can_be_lifted_by_name() {
    let manifest = parse("[limits]\nmemory = 'none'\ntime = 'none'\npids = 'none'\n").unwrap();
    assert_eq!(manifest.limits.memory, Some(Limit::None));
    assert_eq!(manifest.limits.time, Some(Limit::None));
    assert_eq!(manifest.limits.pids, Some(Limit::None));
}

#[test]
fn numbers_are_taken_where_a_person_writes_them() {
    let manifest = parse("[limits]\nmemory = 4096\ntime = 90\ncpus = 1.5\nidle = 0.5\n").unwrap();
    assert_eq!(manifest.limits.memory, Some(Limit::At(Size(4096))));
    assert_eq!(manifest.limits.time, Some(Limit::At(HumanDuration::from_secs(90))));
    assert_eq!(manifest.limits.cpus, Some(Limit::At("1.5".parse().unwrap())));
    assert_eq!(manifest.limits.idle, Some(Limit::At(HumanDuration::from_millis(500))));
}

#[test]
fn a_path_that_is_not_utf8_can_be_written() {
    let manifest = parse("[sandbox]\ntools = [{ b64 = 'L2H/' }]\n").unwrap();
    assert_eq!(manifest.sandbox.tools.as_ref().unwrap().0[0].0.as_bytes(), b"/a\xff");
    assert_eq!(parse(&manifest.to_toml()), Ok(manifest));
    assert!(error("[sandbox]\ntools = [{ b64 = '!' }]\n").contains("is not base64"));
}
