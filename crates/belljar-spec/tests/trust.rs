//! What counts as more than the built-in policy.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod common;

use belljar_spec::{layers, widenings};
use common::{MEMORY, manifest};

fn keys(text: &str) -> Vec<String> {
    let built_in = layers::built_in(Some(MEMORY));
    let found = widenings(&manifest(text), "/proj/p".as_ref(), &built_in);
    found.into_iter().map(|widening| widening.key).collect()
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
    let built_in = layers::built_in(Some(MEMORY));
    for widening in widenings(&manifest(text), "/proj/p".as_ref(), &built_in) {
        assert!(!widening.what.contains(char::is_control), "{widening:?}");
    }
}
