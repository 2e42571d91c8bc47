//! Finding what a manifest opens beyond what would hold without it.

use std::path::Path;

use crate::common::{MEMORY, manifest};
use belljar_spec::{
    Baseline, Layer, Located, Manifest, Origin, Purpose, Settings, Widening, layers, widenings,
};

/// Every path leads where its text points, but for one link.
fn locate(path: &Path) -> Located {
    match path.strip_prefix("/proj/p/link") {
        Ok(rest) => {
            let to = Some(Path::new("/srv/elsewhere").join(rest));
            Located::ByLink { link: "/proj/p/link".into(), to }
        }
        Err(_) => Located::At(path.to_owned()),
    }
}

fn found(text: &str, operators: &str, purpose: Purpose) -> Vec<Widening> {
    let layer = |origin, values: Manifest| Layer { origin, directory: "/etc".into(), values };
    let lower = vec![
        layer(Origin::BuiltIn, layers::built_in(Some(MEMORY))),
        layer(Origin::User("/home/u/c.toml".into()), manifest(operators)),
    ];
    let lower = Settings::merge(lower, None, None).values;
    let directory = Path::new("/proj/p");
    widenings(&manifest(text), baseline(&lower, &Manifest::default(), purpose, directory))
}

fn baseline<'a>(
    lower: &'a Manifest,
    higher: &'a Manifest,
    purpose: Purpose,
    directory: &'a Path,
) -> Baseline<'a> {
    Baseline {
        lower,
        higher,
        directory,
        user_home: None,
        purpose,
        locate: &locate,
        is_control: &|path| path.starts_with("/proj/p/.git/hooks"),
    }
}

/// With flags and variables above the manifest.
fn keys_under(flags: &str, text: &str) -> Vec<String> {
    let lower = layers::built_in(Some(MEMORY));
    let (origin, directory) = (Origin::Flag("-c".into()), "/proj/p".into());
    let higher = Layer { origin, directory, values: manifest(flags) };
    let higher = Settings::merge(vec![higher], None, None).values;
    let baseline = baseline(&lower, &higher, Purpose::Command, Path::new("/proj/p"));
    widenings(&manifest(text), baseline).into_iter().map(|widening| widening.key).collect()
}

fn keys_over(operators: &str, text: &str, purpose: Purpose) -> Vec<String> {
    found(text, operators, purpose).into_iter().map(|widening| widening.key).collect()
}

fn keys(text: &str) -> Vec<String> {
    keys_over("", text, Purpose::Command)
}

#[test]
fn a_harmless_manifest_widens_nothing() {
    let harmless = "
[sandbox]
backend = 'jail'
fallback = ['docker']
workspace = { path = 'src', mode = 'overlay' }
mounts = [{ source = 'src/data', target = '/data', mode = 'rw' }]
rootfs = 'host'
image = 'debian:stable-slim'
hide = ['.env']
env = { A = 'b' }
user = 1234
name = 'x'
labels = { a = 'b' }
tmpfs = ['/t']
[network]
allow = []
[limits]
memory = '8g'
pids = 100
time = '10h'
cpus = 64
disk = '10g'
output = '1m'
[policy]
require = ['limit.memory']
[agent]
kind = 'command'
command = ['true']
prompt_file = 'PROMPT.md'
[loop]
until = { command = ['make', 'test'] }
[service.db]
command = ['redis-server']
[setup]
command = ['make']
[commands]
mode = 'strict'
deny = ['x']
";
    assert_eq!(keys(harmless), Vec::<String>::new());
    assert_eq!(keys(""), Vec::<String>::new());
}

#[test]
fn everything_that_opens_something_is_found() {
    for (text, want) in [
        ("[sandbox]\nbackend = 'host'", "sandbox.backend"),
        ("[sandbox]\nfallback = ['docker', 'host']", "sandbox.fallback"),
        ("[sandbox]\noci_runtime = '/tmp/x'", "sandbox.oci_runtime"),
        ("[sandbox]\nentrypoint = ['/bin/true']", "sandbox.entrypoint"),
        ("[sandbox]\nworkspace = { path = '..' }", "sandbox.workspace.path"),
        ("[sandbox]\nworkspace = { path = '~' }", "sandbox.workspace.path"),
        ("[sandbox]\nworkspace = { path = 'a/../../b' }", "sandbox.workspace.path"),
        ("[sandbox]\nrootfs = '/srv/root'", "sandbox.rootfs"),
        ("[sandbox]\nmounts = [{ source = '/srv', target = '/d' }]", "sandbox.mounts[0]"),
        ("[sandbox]\nmounts = [{ source = '~/x', target = '/d' }]", "sandbox.mounts[0]"),
        ("[sandbox]\nmounts = [{ source = '../p2', target = '/d' }]", "sandbox.mounts[0]"),
        (
            "[sandbox]\nworkspace = { path = 'src' }\nmounts = [{ source = 'lib', target = '/d' }]",
            "sandbox.mounts[0]",
        ),
        ("[sandbox]\nworkspace = { path = 'link' }", "sandbox.workspace.path"),
        ("[sandbox]\nworkspace = { path = 'link/below' }", "sandbox.workspace.path"),
        ("[sandbox]\nmounts = [{ source = 'link', target = '/d' }]", "sandbox.mounts[0]"),
        ("[sandbox]\nrootfs = 'link'", "sandbox.rootfs"),
        ("[agent]\nprompt_file = 'link/p'", "agent.prompt_file"),
        ("[sandbox]\nimage = 'registry.example/x'", "sandbox.image"),
        ("[sandbox]\npull = 'always'", "sandbox.pull"),
        ("[sandbox]\ntools = ['bin']", "sandbox.tools[0]"),
        ("[sandbox]\nallow_source = ['.ssh']", "sandbox.allow_source[0]"),
        ("[sandbox]\npass_env = ['AWS_SECRET']", "sandbox.pass_env[0]"),
        ("[sandbox]\nenv_file = ['.env']", "sandbox.env_file[0]"),
        ("[network]\nallow = ['x.example']", "network.allow"),
        ("[network]\nallow_private = ['x.example']", "network.allow_private"),
        ("[[route]]\nlisten = 1\nto = 'https://x'", "route[0]"),
        ("[limits]\nmemory = '9g'", "limits.memory"),
        ("[limits]\nmemory = 'none'", "limits.memory"),
        ("[limits]\npids = 2049", "limits.pids"),
        ("[limits]\ndisk = '11g'", "limits.disk"),
        ("[limits]\noutput = '1g'", "limits.output"),
        ("[limits]\nstop_timeout = '1h'", "limits.stop_timeout"),
        ("[policy]\nwaive = { 'fs.quota' = 'x' }", "policy.waive.\"fs.quota\""),
        ("[agent]\nkind = 'claude'", "agent.kind"),
        ("[agent]\nauth = 'files'", "agent.auth"),
        ("[agent]\nprompt_file = '/etc/passwd'", "agent.prompt_file"),
        ("[setup]\nnetwork = ['x.example']", "setup.network"),
        ("[commands]\nmode = 'off'", "commands.mode"),
        ("[commands]\nallow = ['x']", "commands.allow"),
        ("[retention]\nruns = 1", "retention"),
    ] {
        assert_eq!(keys(text), [want], "{text}");
    }
}

#[test]
fn a_secret_tells_what_it_executes_and_reads() {
    let secret = "[[secret]]\nenv = 'K'\nhost = 'h'\nbearer = true\n";
    assert_eq!(keys(secret), ["secret[0]"]);
    assert_eq!(
        keys(&format!("{secret}command = ['op', 'read']\n")),
        ["secret[0]", "secret[0].command"]
    );
    assert_eq!(keys(&format!("{secret}file = 'k'\n")), ["secret[0]", "secret[0].file"]);
}

#[test]
fn what_a_person_reads_cannot_drive_a_terminal() {
    let text = "[sandbox]\nmounts = [{ source = \"/x\\u001b[2J\", target = '/d' }]\n[policy]\nwaive = { 'fs.quota' = \"a\\nb\" }\n[network]\nallow = [\"\\u001b\"]\n";
    for widening in found(text, "", Purpose::Command) {
        assert!(!widening.what.contains(char::is_control), "{widening:?}");
    }
}

#[test]
fn where_a_link_leads_is_shown() {
    let widenings = found("[sandbox]\nworkspace = { path = 'link' }", "", Purpose::Command);
    assert!(
        widenings[0].what.contains("/proj/p/link is a link to /srv/elsewhere"),
        "{widenings:?}"
    );
}

/// The operator's configuration, a manifest that loosens it, and one that does not.
#[test]
fn the_operators_own_settings_are_what_counts() {
    for (operators, looser, want, tighter) in [
        (
            "[sandbox]\nworkspace = { mode = 'overlay' }",
            "[sandbox]\nworkspace = { mode = 'rw' }",
            "sandbox.workspace.mode",
            "[sandbox]\nworkspace = { mode = 'ro' }",
        ),
        (
            "[sandbox]\nworkspace = { mode = 'none' }",
            "[sandbox]\nworkspace = { path = 'src' }",
            "sandbox.workspace.mode",
            "[sandbox]\nworkspace = { mode = 'none' }",
        ),
        (
            "[sandbox]\nworkspace = { mode = 'overlay' }",
            "[sandbox]\nmounts = [{ source = 'src', target = '/x', mode = 'rw' }]",
            "sandbox.mounts[0]",
            "[sandbox]\nmounts = [{ source = 'src', target = '/x', mode = 'overlay' }]",
        ),
        (
            "[sandbox]\nbackend = 'docker'",
            "[sandbox]\nbackend = 'jail'",
            "sandbox.backend",
            "[sandbox]\nbackend = 'docker'",
        ),
        (
            "[sandbox]\nbackend = 'docker'",
            "[sandbox]\nfallback = ['jail']",
            "sandbox.fallback",
            "[sandbox]\nfallback = ['docker']",
        ),
        (
            "[sandbox]\noci_runtime = 'runsc'",
            "[sandbox]\noci_runtime = 'runc'",
            "sandbox.oci_runtime",
            "[sandbox]\noci_runtime = 'runsc'",
        ),
        (
            "[sandbox]\npull = 'never'",
            "[sandbox]\npull = 'missing'",
            "sandbox.pull",
            "[sandbox]\npull = 'never'",
        ),
        (
            "[sandbox]\nimage = 'mine:1'",
            "[sandbox]\nimage = 'debian:stable-slim'",
            "sandbox.image",
            "[sandbox]\nimage = 'mine:1'",
        ),
        (
            "[limits]\nmemory = '1g'",
            "[limits]\nmemory = '2g'",
            "limits.memory",
            "[limits]\nmemory = '1g'",
        ),
        (
            "[limits]\ntime = '1h'",
            "[limits]\ntime = 'none'",
            "limits.time",
            "[limits]\ntime = '1m'",
        ),
        ("[limits]\ncpus = 2", "[limits]\ncpus = 3", "limits.cpus", "[limits]\ncpus = 1"),
        (
            "[network.budget]\nbytes_out = '1m'",
            "[network.budget]\nbytes_out = '2m'",
            "network.budget.bytes_out",
            "[network.budget]\nbytes_out = '1k'",
        ),
        (
            "[network]\nallow = ['a.example']",
            "[network]\nallow = ['b.example']",
            "network.allow",
            "[network]\nallow = ['a.example']",
        ),
        (
            "[network]\nintercept = ['a.example']",
            "[network]\nintercept = []",
            "network.intercept",
            "[network]\nintercept = ['a.example', 'b.example']",
        ),
        (
            "[commands]\nmode = 'strict'",
            "[commands]\nmode = 'warn'",
            "commands.mode",
            "[commands]\nmode = 'strict'",
        ),
        (
            "[commands]\ndeny = ['rm *']",
            "[commands]\ndeny = ['ls *']",
            "commands.deny",
            "[commands]\ndeny = ['ls *', 'rm *']",
        ),
        (
            "[agent]\npermissions = 'ask'",
            "[agent]\npermissions = 'bypass'",
            "agent.permissions",
            "[agent]\npermissions = 'ask'",
        ),
        (
            "[loop]\nmax_cost_usd = 1.0",
            "[loop]\nmax_cost_usd = 2.0",
            "loop.max_cost_usd",
            "[loop]\nmax_cost_usd = 0.5",
        ),
        (
            "[loop]\nmax_iterations = 3",
            "[loop]\nmax_iterations = 4",
            "loop.max_iterations",
            "[loop]\nmax_iterations = 3",
        ),
        ("[retention]\nruns = 9", "[retention]\nruns = 8", "retention", "[retention]\nruns = 9"),
        (
            "[sandbox]\nuser = 1000",
            "[sandbox]\nuser = 1001",
            "sandbox.user",
            "[sandbox]\nuser = 1000",
        ),
        (
            "[sandbox]\nrootfs = '/srv/root'",
            "[sandbox]\nrootfs = 'host'",
            "sandbox.rootfs",
            "[sandbox]\nrootfs = '/srv/root'",
        ),
    ] {
        assert_eq!(keys_over(operators, looser, Purpose::Command), [want], "{operators} {looser}");
        let none = Vec::<String>::new();
        assert_eq!(keys_over(operators, tighter, Purpose::Command), none, "{operators} {tighter}");
    }
}

/// A manifest may repeat what the operator has set already.
#[test]
fn repeating_a_setting_opens_nothing() {
    let same = "
[sandbox]
tools = ['/opt/tool']
mounts = [{ source = '/srv', target = '/d' }]
pass_env = ['TERM']
allow_source = ['/srv/x']
[policy]
waive = { 'fs.quota' = 'x' }
[agent]
kind = 'claude'
auth = 'files'
[[secret]]
env = 'K'
host = 'h'
bearer = true
[[route]]
listen = 1
to = 'https://x'
";
    assert_eq!(keys_over(same, same, Purpose::Command), Vec::<String>::new());
    assert!(keys(same).len() > 8); // control: without the operator's settings it is all found
}

#[test]
fn an_agents_default_is_an_overlay() {
    let rw = "[sandbox]\nworkspace = { mode = 'rw' }";
    assert_eq!(keys_over("", rw, Purpose::Command), Vec::<String>::new());
    for purpose in [Purpose::CommandAgent, Purpose::AccountAgent] {
        assert_eq!(keys_over("", rw, purpose), ["sandbox.workspace.mode"]);
    }
}

#[test]
fn a_manifest_with_prompts_for_the_users_agent_needs_trust() {
    for text in ["[agent]\nprompt = 'x'", "[agent]\nprompt_file = 'P'", "[agent]\nargs = ['x']"] {
        assert_eq!(keys_over("", text, Purpose::CommandAgent), Vec::<String>::new(), "{text}");
        assert_eq!(keys_over("", text, Purpose::AccountAgent).len(), 1, "{text}");
    }
}

#[test]
fn what_executes_on_the_host_is_not_handed_over_by_a_path() {
    for (text, want) in [
        ("[sandbox]\nworkspace = { path = '.git/hooks' }", "sandbox.workspace.path"),
        (
            "[sandbox]\nmounts = [{ source = '.git/hooks', target = '/g', mode = 'rw' }]",
            "sandbox.mounts[0]",
        ),
    ] {
        assert_eq!(keys(text), [want], "{text}");
    }
    let read_only = "[sandbox]\nmounts = [{ source = '.git/hooks', target = '/g' }]";
    assert_eq!(keys(read_only), Vec::<String>::new(), "the control");
}

#[test]
fn flags_and_variables_are_not_undone() {
    for (flags, text, want) in [
        ("[sandbox]\nbackend = 'podman'", "[sandbox]\nfallback = ['jail']", "sandbox.fallback"),
        (
            "[sandbox]\nworkspace = { path = '/other' }",
            "[sandbox]\nmounts = [{ source = '.', target = '/m', mode = 'rw' }]",
            "sandbox.mounts[0]",
        ),
        (
            "[sandbox]\nworkspace = { mode = 'none' }",
            "[sandbox]\nmounts = [{ source = '.', target = '/m' }]",
            "sandbox.mounts[0]",
        ),
        (
            "[sandbox]\nworkspace = { mode = 'ro' }",
            "[sandbox]\nmounts = [{ source = 'src', target = '/m', mode = 'rw' }]",
            "sandbox.mounts[0]",
        ),
        (
            "[sandbox]\nhide = ['src/key']",
            "[sandbox]\nworkspace = { path = 'src' }",
            "sandbox.workspace.path",
        ),
    ] {
        assert_eq!(keys_under(flags, text), [want], "{flags} {text}");
    }
    // What a flag wins over is of no account.
    for (flags, text) in [
        ("[sandbox]\nbackend = 'jail'", "[sandbox]\nbackend = 'docker'"),
        ("[sandbox]\nworkspace = { mode = 'ro' }", "[sandbox]\nworkspace = { mode = 'rw' }"),
        ("[sandbox]\nworkspace = { path = '/other' }", "[sandbox]\nworkspace = { path = '..' }"),
    ] {
        assert_eq!(keys_under(flags, text), Vec::<String>::new(), "{flags} {text}");
    }
}

#[test]
fn an_account_is_not_spent_again_and_again() {
    let text = "[loop]\nmax_iterations = 3";
    assert_eq!(keys_over("", text, Purpose::AccountAgent), ["loop"]);
    assert_eq!(keys_over("", text, Purpose::CommandAgent), Vec::<String>::new());
    assert_eq!(keys_over(text, text, Purpose::AccountAgent), Vec::<String>::new());
}

#[test]
fn a_repository_that_the_operator_left_out_stays_out() {
    let over = |operators: &str, text: &str| keys_over(operators, text, Purpose::Command);
    let (auto, off) = ("[sandbox]\ngit = 'auto'\n", "[sandbox]\ngit = 'off'\n");
    assert_eq!(over(off, auto), ["sandbox.git"]);
    for (operators, text) in [("", auto), (auto, auto), (auto, off), (off, off)] {
        assert_eq!(over(operators, text), [""; 0], "{operators} {text}");
    }
}

#[test]
fn the_name_in_git_is_not_taken_back_from_an_operator_who_withheld_it() {
    let wants = "[sandbox]\ngit_identity = true\n";
    let over = |operators: &str, text: &str| keys_over(operators, text, Purpose::Command);
    assert_eq!(over("[sandbox]\ngit_identity = false\n", wants), ["sandbox.git_identity"]);
    let other = "[sandbox]\ngit_identity = { name = 'a', email = 'b' }\n";
    assert_eq!(over(other, wants), ["sandbox.git_identity"]);
    for (operators, text) in [("", wants), (wants, wants), (wants, other), ("", other)] {
        assert_eq!(over(operators, text), [""; 0], "{operators} {text}");
    }
    assert_eq!(over("", "[sandbox]\nshell = '/bin/zsh'\n"), [""; 0]);
}
