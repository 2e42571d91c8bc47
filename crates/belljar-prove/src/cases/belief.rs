//! What the launcher is led to by files: a cloned tree's, and those that an earlier run wrote.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use belljar_spec::Clause;

use super::judge::{hosts_own, summary};
use crate::answer::{Answer, Told};
use crate::case::{Case, Severity, Verdict};
use crate::stage::{Run, Seen, Stage, StageError, Unprotected};

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
fn led_there(seen: &Seen, outside: &Told, canary: &str) -> Option<Verdict> {
    hosts_own(&seen.heard()?, outside, &[canary])
}

fn manifest_link(stage: &Stage) -> Result<Verdict, StageError> {
    let outside = stage.place()?;
    let canary = format!("{} outside of the tree\n", stage.word()?);
    stage.file(&outside.join("secret"), &canary)?;
    let secret = outside.join("secret");
    let host =
        stage.outside(Unprotected::Directly, ["read".as_ref(), secret.as_os_str()])?.told()?;
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
    let read = Run::without_own_workspace(stage, "read").arg("/workspace/secret");
    for (what, manifest) in manifests {
        let tree = stage.place()?;
        symlink(&outside, tree.join("w")).map_err(StageError::io("plant a link"))?;
        stage.file(&tree.join("belljar.toml"), &manifest)?;
        let seen = stage.inside(&read.clone().in_tree(&tree))?;
        if let Some(verdict) = led_there(&seen, &host, &canary) {
            return Ok(verdict);
        }
        if seen.heard().is_none() && seen.code == Some(0) {
            return Err(StageError::Unexpected(format!("{what}: {}", seen.stderr)));
        }
    }
    // The operator's own word leads there, so it is the link of the tree that did not.
    let named =
        Run::without_workspace(stage, "read").mount(&outside, "/named").arg("/named/secret");
    let control = stage.inside(&named)?.told()?;
    if control.successes() != 1 {
        return Ok(Verdict::no_control(format!("named by the operator: {}", summary(&control))));
    }
    Ok(Verdict::held("3 manifests led to nothing outside of their tree"))
}

fn system_secrets(stage: &Stage) -> Result<Verdict, StageError> {
    let mut secrets: Vec<PathBuf> = ["/etc/shadow", "/etc/gshadow"].map(PathBuf::from).to_vec();
    let keys = std::fs::read_dir("/etc/ssh").into_iter().flatten().flatten();
    secrets.extend(keys.map(|entry| entry.path()).filter(|path| is_host_key(path)));
    secrets.retain(|path| path.exists());
    if secrets.is_empty() {
        return Ok(Verdict::not_tried("this host has no such files"));
    }
    for secret in &secrets {
        let run = Run::without_workspace(stage, "read").mount(secret, "/given").arg("/given");
        let seen = stage.inside(&run)?;
        if let Some(told) = seen.heard() {
            let shown = secret.display();
            return Ok(Verdict::broke(format!("{shown} was mounted: {}", summary(&told))));
        }
        if seen.code != Some(125) {
            return Err(StageError::Unexpected(format!("{}: {}", seen.end(), seen.stderr)));
        }
    }
    let harmless = stage.place()?.join("file");
    stage.file(&harmless, "harmless\n")?;
    let run = Run::without_workspace(stage, "read").mount(&harmless, "/given").arg("/given");
    if stage.inside(&run)?.told()?.successes() != 1 {
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

fn written_before(stage: &Stage) -> Result<Verdict, StageError> {
    let written = stage.workspace()?;
    let own = stage.place()?;
    let canary = stage.word()?;
    let backwards: String = canary.chars().rev().collect();
    let manifest = format!("[sandbox]\npass_env = [\"{SECRET}\"]\n");
    for (name, text) in [("ops.toml", &manifest), ("run.env", &format!("{SECRET}\n"))] {
        stage.file(&own.join(name), text)?;
        let run = Run::of(&written, "write-file").arg(Path::new("/workspace").join(name)).arg(text);
        let told = stage.inside(&run)?.told()?;
        if told.successes() != 1 {
            return Ok(Verdict::no_control(format!("{name} could not be written by a run")));
        }
    }
    let link =
        Run::of(&written, "plant-link").arg("/workspace/linked.env").arg(own.join("run.env"));
    if stage.inside(&link)?.told()?.successes() != 1 {
        return Ok(Verdict::no_control("the link could not be planted"));
    }
    let look = |by: &str, file: PathBuf| {
        let run =
            Run::without_workspace(stage, "canary").arg(&backwards).launcher_env(SECRET, &canary);
        let run = match by {
            "--manifest" => run.manifest(file),
            by => run.flag(by).flag(file),
        };
        stage.inside(&run)
    };
    let has_it = |seen: &Seen| {
        seen.heard().is_some_and(|told| told.answer("own environment") == Some(Answer::Succeeded))
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
