//! Files that try to mislead the launcher: in a cloned tree, or written by an earlier run.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use belljar_spec::Clause;

use super::judge::{hosts_own, summary};
use crate::case::{Case, Severity, Verdict};
use crate::probe_report::{AttemptResult, ProbeReport};
use crate::testbed::{ProcessOutput, Run, TestBed, TestBedError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "fs.manifest-link",
        attack: "a cloned tree whose manifest names a link out of it as workspace or mount",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: manifest_link,
    },
    Case {
        name: "fs.system-secrets",
        attack: "mount the password and key files of the system",
        clause: Clause::FsMounts,
        severity: Severity::High,
        run: system_secrets,
    },
    Case {
        name: "env.written-before",
        attack: "a manifest, an env file and a link that an earlier run wrote are used by the next",
        clause: Clause::EnvClean,
        severity: Severity::Critical,
        run: written_before,
    },
];

/// Nothing was started, or what was started met nothing of the host's.
fn led_there(seen: &ProcessOutput, outside: &ProbeReport, canary: &str) -> Option<Verdict> {
    hosts_own(&seen.probe_report()?, outside, &[canary])
}

fn manifest_link(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let outside = testbed.place()?;
    let canary = format!("{} outside of the tree\n", testbed.unique_name()?);
    testbed.file(&outside.join("secret"), &canary)?;
    let secret = outside.join("secret");
    let host =
        testbed.outside(Unprotected::Directly, ["read".as_ref(), secret.as_os_str()])?.report()?;
    let manifests = [
        ("workspace", "[sandbox]\nworkspace = { path = \"w\" }\n".to_owned()),
        ("read-only", "[sandbox]\nworkspace = { path = \"w\", mode = \"ro\" }\n".to_owned()),
        (
            "mount",
            "[sandbox]\nworkspace = { mode = \"none\" }\n\
             mounts = [{ source = \"w\", target = \"/workspace\", mode = \"ro\" }]\n"
                .to_owned(),
        ),
    ];
    let read = Run::without_own_workspace(testbed, "read").arg("/workspace/secret");
    for (what, manifest) in manifests {
        let tree = testbed.place()?;
        symlink(&outside, tree.join("w")).map_err(TestBedError::io("plant a link"))?;
        testbed.file(&tree.join("belljar.toml"), &manifest)?;
        let seen = testbed.inside(&read.clone().in_tree(&tree))?;
        if let Some(verdict) = led_there(&seen, &host, &canary) {
            return Ok(verdict);
        }
        if seen.probe_report().is_none() && seen.code == Some(0) {
            return Err(TestBedError::Unexpected(format!("{what}: {}", seen.stderr)));
        }
    }
    // The user's own path leads there, so only the link in the tree was refused.
    let named =
        Run::without_workspace(testbed, "read").mount(&outside, "/named").arg("/named/secret");
    let control = testbed.inside(&named)?.report()?;
    if control.successes() != 1 {
        return Ok(Verdict::no_control(format!("named by the operator: {}", summary(&control))));
    }
    Ok(Verdict::held("3 manifests led to nothing outside of their tree"))
}

fn system_secrets(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let mut secrets: Vec<PathBuf> = ["/etc/shadow", "/etc/gshadow"].map(PathBuf::from).to_vec();
    let keys = std::fs::read_dir("/etc/ssh").into_iter().flatten().flatten();
    secrets.extend(keys.map(|entry| entry.path()).filter(|path| is_host_key(path)));
    secrets.retain(|path| path.exists());
    if secrets.is_empty() {
        return Ok(Verdict::not_tried("this host has no such files"));
    }
    for secret in &secrets {
        let run = Run::without_workspace(testbed, "read").mount(secret, "/given").arg("/given");
        let seen = testbed.inside(&run)?;
        if let Some(report) = seen.probe_report() {
            let shown = secret.display();
            return Ok(Verdict::broke(format!("{shown} was mounted: {}", summary(&report))));
        }
        if seen.code != Some(125) {
            return Err(TestBedError::Unexpected(format!("{}: {}", seen.end(), seen.stderr)));
        }
    }
    let harmless = testbed.place()?.join("file");
    testbed.file(&harmless, "harmless\n")?;
    let run = Run::without_workspace(testbed, "read").mount(&harmless, "/given").arg("/given");
    if testbed.inside(&run)?.report()?.successes() != 1 {
        return Ok(Verdict::no_control("a harmless file is refused too"));
    }
    Ok(Verdict::held(format!("{} starts refused", secrets.len())))
}

fn is_host_key(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("ssh_host_") && name.ends_with("_key")
}

/// The variable of the host's that a bare name in an env file pulls in.
const SECRET: &str = "PROVE_SECRET";

fn written_before(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let written = testbed.workspace()?;
    let own = testbed.place()?;
    let canary = testbed.unique_name()?;
    let backwards: String = canary.chars().rev().collect();
    let manifest = format!("[sandbox]\npass_env = [\"{SECRET}\"]\n");
    for (name, text) in [("ops.toml", &manifest), ("run.env", &format!("{SECRET}\n"))] {
        testbed.file(&own.join(name), text)?;
        let run = Run::of(&written, "write-file").arg(Path::new("/workspace").join(name)).arg(text);
        let report = testbed.inside(&run)?.report()?;
        if report.successes() != 1 {
            return Ok(Verdict::no_control(format!("{name} could not be written by a run")));
        }
    }
    let link =
        Run::of(&written, "plant-link").arg("/workspace/linked.env").arg(own.join("run.env"));
    if testbed.inside(&link)?.report()?.successes() != 1 {
        return Ok(Verdict::no_control("the link could not be planted"));
    }
    let look = |by: &str, file: PathBuf| {
        let run =
            Run::without_workspace(testbed, "canary").arg(&backwards).launcher_env(SECRET, &canary);
        let run = match by {
            "--manifest" => run.manifest(file),
            by => run.flag(by).flag(file),
        };
        testbed.inside(&run)
    };
    let has_it = |seen: &ProcessOutput| {
        seen.probe_report().is_some_and(|report| {
            report.answer("own environment") == Some(AttemptResult::Succeeded)
        })
    };
    let ways =
        [("--manifest", "ops.toml"), ("--env-file", "run.env"), ("--env-file", "linked.env")];
    for (by, name) in ways {
        if has_it(&look(by, written.join(name))?) {
            return Ok(Verdict::broke(format!(
                "{by} {name}, which an earlier run wrote, gave the host's secret to the next"
            )));
        }
    }
    // Where no run could have written them, they are the operator's.
    if !has_it(&look("--env-file", own.join("run.env"))?) {
        return Ok(Verdict::no_control("the operator's own file is not believed either"));
    }
    Ok(Verdict::held("3 files of an earlier run were not believed"))
}
