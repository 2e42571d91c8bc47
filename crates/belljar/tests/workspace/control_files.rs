//! Files of an `rw` workspace that the host executes later: a run cannot change those that are there, and what it
//! made is told.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use belljar_testkit::{Done, Input, Lab, Live, PtyRun, each_engine, each_user};
use serde_json::Value;

/// Control files at the top of a workspace, with a directory above some.
const FILES: &[&str] = &[
    ".envrc",
    ".mcp.json",
    ".vscode/tasks.json",
    ".vscode/settings.json",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".cursor/mcp.json",
    ".gemini/settings.json",
    ".codex/config.toml",
    ".bashrc",
    ".profile",
    ".zshenv",
    "belljar.toml",
];

const BUSY: &str = "Device or resource busy";
const READ_ONLY: &str = "Read-only file system";

/// In the jail, or on the engine that a whole test run is meant for.
fn each_lab(test: impl Fn(&Lab)) {
    if std::env::var_os(belljar::spec::env::TEST_ON).is_some() {
        return test(&Lab::me());
    }
    each_user(test);
}

/// Everything below a directory, with what it holds.
fn everything(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![directory.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(directory).unwrap().display().to_string();
            if meta.is_dir() {
                todo.push(path);
                found.push(format!("{name}/"));
            } else if meta.is_file() {
                found.push(format!("{name}={}", fs::read_to_string(&path).unwrap_or_default()));
            } else {
                found.push(format!("{name}?"));
            }
        }
    }
    found.sort();
    found
}

pub(super) fn git(lab: &Lab, directory: &Path, words: &[&str]) -> String {
    let mut command = Command::new("git");
    if let Some(user) = lab.actor.user() {
        use std::os::unix::process::CommandExt;
        command.uid(user.uid).gid(user.gid);
    }
    let done = command
        .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"])
        .args(["-c", "protocol.file.allow=always"])
        .arg("-C")
        .arg(directory)
        .args(words)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", lab.person())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "git {words:?}: {err}");
    String::from_utf8(done.stdout).unwrap()
}

fn repository(lab: &Lab, directory: &Path) {
    git(lab, directory, &["init", "-q", "."]);
    git(lab, directory, &["commit", "-q", "--allow-empty", "-m", "first"]);
}

/// A run that has printed `ready` and waits.
fn waiting(lab: &Lab, script: &str) -> Live {
    let script = format!("echo ready; read go; {script}");
    let live = lab.run(["-q", "--", "sh", "-c", &script]).input(Input::Open).spawn();
    live.wait_for_output("ready");
    live
}

fn goes_on(mut live: Live) -> Done {
    live.type_in(b"go\n");
    live.done()
}

/// Paths that the end of the run says to run later.
fn told(result: &Value) -> Vec<String> {
    let later = result["workspace"]["autorun"].as_array().cloned().unwrap_or_default();
    let mut paths: Vec<String> =
        later.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect();
    paths.sort();
    paths
}

#[test]
fn what_is_there_can_be_neither_written_nor_replaced() {
    each_lab(|lab| {
        for file in FILES {
            lab.make_file(format!("work/{file}"), "before\n");
        }
        lab.make_file("work/plain", "before\n");
        lab.make_file("work/dir/plain", "before\n");
        let before = everything(&lab.work());
        for file in FILES {
            let script = format!(
                "cat {file}; echo x > {file}; echo x > new; mv new {file}; mv {file} away; rm -f {file}; \
                 ln -f plain {file}; chmod 777 {file}; rm -f new away; true"
            );
            let done = lab.sh(&["--no-config"], &script);
            assert_eq!(done.expect(0).out(), "before\n", "{file} is read as it is");
            let (busy, read_only) =
                (done.err().matches(BUSY).count(), done.err().matches(READ_ONLY).count());
            assert!(busy >= 3 && read_only >= 2, "{file} as {:?}: {done}", lab.actor);
            assert_eq!(everything(&lab.work()), before, "{file}");
        }
        for directory in [".vscode", ".claude"] {
            let script =
                format!("mv {directory} away; rm -rf {directory}; mkdir {directory}; true");
            let done = lab.sh(&["--no-config"], &script);
            assert!(done.err().matches(BUSY).count() >= 2, "{done}");
            assert_eq!(everything(&lab.work()), before, "{directory}");
        }
        // The controls: a plain file beside it, and one that is let through.
        lab.sh(&["--no-config"], "echo x > plain; mv dir away; rm -r away").expect(0);
        assert_eq!(fs::read_to_string(lab.work().join("plain")).unwrap(), "x\n");
        let allowed = ["--no-config", "--allow-control", ".envrc", "--allow-control", ".vscode"];
        lab.sh(&allowed, "echo y > .envrc && rm -r .vscode && mkdir .vscode").expect(0);
        assert_eq!(fs::read_to_string(lab.work().join(".envrc")).unwrap(), "y\n");
        assert!(fs::read_dir(lab.work().join(".vscode")).unwrap().next().is_none());
    });
}

/// Nothing of ours is ever in the tree: while the run lives, and after it.
#[test]
fn what_is_missing_is_not_covered_and_what_is_made_is_told() {
    each_lab(|lab| {
        lab.make_file("work/plain", "");
        let script = "echo ready; read go; ls -A; echo y > .envrc; mkdir .vscode; \
             echo {} > .vscode/tasks.json";
        let live = lab.run(["--", "sh", "-c", script]).input(Input::Open).spawn();
        live.wait_for_output("ready");
        assert_eq!(everything(&lab.work()), ["plain="], "while it lives");
        // Programs of the host can make them meanwhile.
        fs::create_dir(lab.work().join(".claude")).unwrap();
        fs::remove_dir(lab.work().join(".claude")).unwrap();
        let done = goes_on(live);
        assert_eq!(done.expect(0).out(), "ready\nplain\n");
        done.says(&["runs later on the host", ".envrc", "direnv", "tasks.json"]);
        let there = everything(&lab.work());
        let expected = [".envrc=y\n", ".vscode/", ".vscode/tasks.json={}\n", "plain="];
        assert_eq!(there, expected);
        assert!(!lab.home().join("placeholders").exists());
        // From now on they are there, and stay as they are.
        let next = lab.sh(&["-q", "--no-config"], "echo x > .envrc; rm -rf .vscode; true");
        assert!(next.expect(0).err().contains(READ_ONLY) && next.err().contains(BUSY), "{next}");
        assert_eq!(everything(&lab.work()), there);
    });
}

#[test]
fn a_repository_works_and_its_hooks_and_keys_stay() {
    each_user(|lab| {
        repository(lab, &lab.work());
        let config = fs::read(lab.work().join(".git/config")).unwrap();
        lab.make_file("work/.git/hooks/post-commit", "before\n");
        let hooks = everything(&lab.work().join(".git/hooks"));
        let attack = "echo x > .git/hooks/pre-commit; git config core.fsmonitor evil; \
             echo x > .git/config.lock; mv .git/config.lock .git/config; mv .git x; mkdir .git; \
             rm -rf .git/hooks; rm -f .git/config.lock; \
             ls -a .git | grep -c -e HEAD";
        let done = lab.sh(&[], attack);
        assert_eq!(done.expect(0).out(), "1\n");
        assert!(done.err().contains(BUSY) && done.err().contains(READ_ONLY), "{done}");
        assert_eq!(fs::read(lab.work().join(".git/config")).unwrap(), config);
        assert_eq!(everything(&lab.work().join(".git/hooks")), hooks);
        // The control: everything that git itself needs.
        let work = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; \
             set -e; test -z \"$(git status --porcelain)\"; echo one > file; git add file; git commit -qm one; \
             git checkout -q -b side; echo two > file; git commit -qam two; git checkout -q main; \
             git merge -q side > /dev/null; echo u > untracked; git stash -q -u; git stash pop -q > /dev/null; git clean -fdxq; \
             git rebase -q HEAD~1 > /dev/null; git gc -q; git worktree add -q /tmp/w; git worktree list | wc -l; \
             git log --oneline | wc -l";
        let done = lab.sh(&[], work);
        assert_eq!(done.expect(0).out(), "2\n3\n", "{done}");
        assert_eq!(git(lab, &lab.work(), &["log", "--format=%s"]), "two\none\nfirst\n");
        assert_eq!(git(lab, &lab.work(), &["status", "--porcelain"]), "");
        git(lab, &lab.work(), &["fsck", "--no-progress"]);
    });
}

#[test]
fn nothing_new_is_seen_by_git_while_a_run_is_live() {
    each_user(|lab| {
        repository(lab, &lab.work());
        let clean = ["status", "--porcelain", "--untracked-files=all", "--ignored"];
        let live =
            waiting(lab, "git status --porcelain --untracked-files=all; git stash -u -q; echo $?");
        assert!(fs::symlink_metadata(lab.work().join(".envrc")).is_err(), "nothing is put there");
        assert_eq!(git(lab, &lab.work(), &clean), "");
        let branch =
            git(lab, &lab.work(), &["rev-parse", "--abbrev-ref", "HEAD", "--show-toplevel"]);
        assert_eq!(branch, format!("main\n{}\n", lab.work().display()));
        git(lab, &lab.work(), &["commit", "-q", "--allow-empty", "-m", "on the host"]);
        assert_eq!(goes_on(live).expect(0).out(), "ready\n0\n");
        assert_eq!(git(lab, &lab.work(), &clean), "");
        assert_eq!(
            everything(&lab.work()).iter().filter(|name| !name.starts_with(".git")).count(),
            0
        );
    });
}

#[test]
fn a_new_repository_can_be_made_and_is_told() {
    each_user(|lab| {
        let script = "git init -q . && git config user.name a && git config core.pager evil && \
             echo x > .git/hooks/pre-commit && cp -r . /tmp/copy";
        let result = lab.sh_json(&[], script);
        assert_eq!(result["exit"]["code"], 0, "{result}");
        let told = told(&result);
        assert!(told.contains(&".git/config".to_owned()), "{told:?}");
        assert!(told.contains(&".git/hooks/pre-commit".to_owned()), "{told:?}");
        let later = result["workspace"]["autorun"].as_array().unwrap();
        let config = later.iter().find(|file| file["path"] == ".git/config").unwrap();
        assert_eq!((&config["class"], &config["change"]), (&"control".into(), &"created".into()));
        // The next run finds it, and keeps off.
        let done = lab.sh(&[], "git config core.pager worse");
        assert!(done.code() != 0 && done.err().contains(BUSY), "{done}");
    });
}

#[test]
fn nested_repositories_worktrees_and_submodules_are_protected() {
    each_user(|lab| {
        let work = lab.work();
        repository(lab, &work);
        let library = lab.make_directory("library");
        repository(lab, &library);
        git(lab, &work, &["submodule", "--quiet", "add", library.to_str().unwrap(), "lib"]);
        git(lab, &work, &["worktree", "add", "-q", "side"]);
        repository(lab, &lab.make_directory("work/a/b/nested"));
        git(lab, &lab.make_directory("work/bare"), &["init", "-q", "--bare", "."]);
        symlink("../a", work.join("a/link")).unwrap();
        let before = everything(&work);
        for directory in [".git/modules/lib", ".git/worktrees/side", "a/b/nested/.git", "bare"] {
            let script = format!(
                "cd {directory}; for f in config config.worktree commondir gitdir; do \
                   test -e $f || continue; echo x >> $f; rm -f $f; echo x > $f.new; mv $f.new $f; \
                   rm -f $f.new; done; \
                 test -e hooks && echo x > hooks/post-checkout; rm -rf hooks; true"
            );
            lab.sh(&[], &script).expect(0);
            let after = everything(&work);
            let odd: Vec<_> = after.iter().filter(|entry| !before.contains(entry)).collect();
            // What git never reads in a worktree's own part, and a pointer that is none there.
            let harmless = |entry: &&&String| {
                let name = entry.split('=').next().unwrap();
                name.ends_with("/gitdir") || name == ".git/worktrees/side/config"
            };
            let odd: Vec<_> = odd.iter().filter(|entry| !harmless(entry)).collect();
            assert!(odd.is_empty(), "{directory} as {:?}: {odd:?}", lab.actor);
            let gone: Vec<_> = before.iter().filter(|entry| !after.contains(entry)).collect();
            assert!(gone.is_empty(), "{directory} as {:?}: {gone:?}", lab.actor);
        }
        for file in ["lib/.git", "side/.git"] {
            let done = lab
                .sh(&[], &format!("echo 'gitdir: /x' > {file}; rm -f {file}; mv {file} y; true"));
            assert!(done.err().contains(READ_ONLY) && done.err().contains(BUSY), "{done}");
        }
        for directory in
            [".git", ".git/modules", ".git/modules/lib", "a", "a/b", "a/b/nested", "bare"]
        {
            let done = lab.sh(&[], &format!("mv {directory} away; mkdir {directory}; true"));
            assert!(done.err().contains(BUSY), "{directory}: {done}");
        }
        // The control.
        lab.sh(
            &[],
            "cd a/b/nested && git -c user.name=a -c user.email=b commit -q --allow-empty -m x",
        )
        .expect(0);
        assert_eq!(git(lab, &work.join("a/b/nested"), &["rev-list", "--count", "HEAD"]), "2\n");
    });
}

#[test]
fn a_link_is_kept_with_what_it_leads_to() {
    each_user(|lab| {
        lab.make_file("work/shared/rc", "before\n");
        lab.make_file("work/shared/hooks/pre-commit", "before\n");
        repository(lab, &lab.work());
        fs::remove_dir_all(lab.work().join(".git/hooks")).unwrap();
        symlink("../shared/hooks", lab.work().join(".git/hooks")).unwrap();
        symlink("shared/rc", lab.work().join(".bashrc")).unwrap();
        symlink("shared/rc", lab.work().join("plain")).unwrap();
        let script = "cat .bashrc .git/hooks/pre-commit; rm .bashrc .git/hooks; ln -sfn /tmp .git/hooks; \
             echo x > .bashrc; echo x > shared/rc; echo x > shared/hooks/pre-commit; mv shared away; rm plain";
        let done = lab.sh(&[], script);
        assert_eq!(done.expect(0).out(), "before\nbefore\n");
        assert!(done.err().matches(BUSY).count() >= 4, "{done}");
        assert!(done.err().matches(READ_ONLY).count() >= 3, "{done}");
        for link in [".bashrc", ".git/hooks"] {
            assert!(fs::symlink_metadata(lab.work().join(link)).unwrap().is_symlink(), "{link}");
        }
        assert_eq!(fs::read_to_string(lab.work().join("shared/rc")).unwrap(), "before\n");
        assert!(!lab.work().join("plain").is_symlink(), "the control: another link can go");
    });
}

#[test]
fn the_end_of_one_run_leaves_the_other_protected() {
    each_lab(|lab| {
        lab.make_file("work/.envrc", "before\n");
        let first = waiting(lab, "true");
        let second = waiting(lab, "echo x > .envrc; rm -f .envrc; true");
        goes_on(first).expect(0);
        let done = goes_on(second);
        assert!(done.err().contains(READ_ONLY) && done.err().contains(BUSY), "{done}");
        assert_eq!(fs::read_to_string(lab.work().join(".envrc")).unwrap(), "before\n");
    });
}

/// Sockets of mode 0, written down in the home.
#[test]
fn what_an_earlier_version_left_in_a_tree_is_taken_away() {
    each_lab(|lab| {
        lab.sh(&["-q"], "true").expect(0);
        let run = lab.runs().remove(0);
        let held = lab.work().join(".envrc");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &held,
            rustix::fs::FileType::Socket,
            rustix::fs::Mode::empty(),
            0,
        )
        .unwrap();
        let plain = lab.make_file("work/.profile", "somebody's\n");
        let note = format!("{}\0\0{}\0\0", held.display(), plain.display());
        lab.make_file(format!("home/placeholders/{run}"), note);
        lab.belljar(["reconcile"]).done().expect(0);
        assert_eq!(everything(&lab.work()), [".profile=somebody's\n"]);
        assert!(!lab.home().join("placeholders").exists());
    });
}

#[test]
fn another_rw_tree_is_protected_too_and_an_empty_one_stays_empty() {
    each_lab(|lab| {
        lab.make_file("data/file", "");
        lab.make_file("data/.profile", "before\n");
        let empty = lab.make_directory("empty");
        let mounts = [
            format!("{}:/data:rw", lab.path("data").display()),
            format!("{}:/empty:rw", empty.display()),
        ];
        let options = ["-v", &mounts[0], "-v", &mounts[1]];
        let script = "ls /data; ls -A /empty | wc -l; echo x > /data/.profile; echo x > /data/.bashrc; \
             echo x > /data/new; true";
        let done = lab.sh(&options, script);
        assert_eq!(done.expect(0).out(), "file\n0\n");
        assert!(done.err().contains(READ_ONLY), "{done}");
        let expected = [".bashrc=x\n", ".profile=before\n", "file=", "new=x\n"];
        assert_eq!(everything(&lab.path("data")), expected);
    });
}

#[test]
fn project_files_can_be_edited_and_are_told() {
    each_lab(|lab| {
        lab.make_file("work/package.json", "{}");
        lab.make_file("work/Makefile", "all:");
        lab.make_file("work/src/main.rs", "");
        let script = "echo '{\"a\":1}' > package.json; echo x > src/main.rs; mkdir -p .github/workflows; \
             echo x > .github/workflows/ci.yml; mkdir -p node_modules/x; echo x > node_modules/x/package.json";
        let done = lab.sh(&[], script);
        done.expect(0).says(&["runs later on the host", "/workspace/package.json", "ci.yml"]);
        assert!(!done.err().contains("Makefile") && !done.err().contains("node_modules"), "{done}");
        assert!(done.err().lines().all(|line| line.chars().count() <= 80), "{done}");
        let run = lab.runs().remove(0);
        let shown = lab.belljar(["show", &run]).done();
        assert!(shown.expect(0).out().contains("/workspace/package.json"), "{shown}");
        let quiet = lab.sh(&["-q"], "echo x >> package.json");
        assert_eq!(quiet.expect(0).err(), "");
        let nothing = lab.sh(&[], "echo x >> src/main.rs");
        assert_eq!(nothing.expect(0).err(), "", "nothing to tell is nothing said");
        let result = lab.sh_json(&[], "echo x >> Makefile");
        assert_eq!(told(&result), ["Makefile"]);
    });
}

#[test]
fn a_crowd_of_files_takes_nothing_off() {
    each_user(|lab| {
        repository(lab, &lab.work());
        repository(lab, &lab.make_directory("work/sub"));
        lab.make_file("work/.idea/workspace.xml", "before\n");
        lab.sh(&["-q"], "seq 4500 | sed s/^/z/ | xargs touch").expect(0);
        for file in [".git/config", ".git/hooks/x", ".idea/workspace.xml", "sub/.git/config"] {
            let done = lab.sh(&["-q"], &format!("echo evil >> {file}"));
            assert!(done.code() != 0 && done.err().contains(READ_ONLY), "{file}: {done}");
        }
        lab.sh(&["-q"], "echo x >> z1").expect(0);
        lab.sh(&["-q"], "seq 21000 | sed s/^/y/ | xargs touch").expect(0);
        lab.make_file("work/z/deep/.envrc", "before\n");
        for file in [".git/config", "z/deep/.envrc"] {
            let done = lab.sh(&[], &format!("echo evil >> {file}"));
            assert!(done.code() != 0 && done.err().contains(READ_ONLY), "{done}");
            assert!(!done.err().contains("too large"), "{done}");
        }
    });
}

#[test]
fn what_is_hidden_cannot_be_renamed_with_what_it_lies_in() {
    each_user(|lab| {
        lab.make_file("work/sec/in/k", "secret\n");
        lab.make_file("work/other/k", "");
        let done = lab.sh(&["--hide", "sec/in"], "mv other o2; mv sec s2");
        assert!(done.code() != 0 && done.err().contains(BUSY), "{done}");
        assert!(lab.work().join("sec/in/k").exists());
        assert!(lab.work().join("o2").exists(), "the control: another directory");
        lab.sh(&["--hide", "sec/in"], "echo x > sec/new && ls sec/in | wc -l").expect(0);
    });
}

#[test]
fn one_allowed_file_opens_no_other_beside_it() {
    each_user(|lab| {
        lab.make_file("work/.vscode/tasks.json", "before\n");
        lab.make_file("work/.vscode/settings.json", "before\n");
        let allowed = ["-q", "--allow-control", ".vscode/tasks.json"];
        let script =
            "echo y > .vscode/tasks.json; echo x > .vscode/settings.json; mv .vscode away; true";
        let done = lab.sh(&allowed, script);
        assert!(done.expect(0).err().contains(BUSY), "{done}");
        let expected = [".vscode/", ".vscode/settings.json=before\n", ".vscode/tasks.json=y\n"];
        assert_eq!(everything(&lab.work()), expected, "{done}");
    });
}

#[test]
fn an_env_file_that_is_not_hidden_is_warned_of() {
    each_user(|lab| {
        lab.make_file("work/.env", "A=1");
        lab.make_file("work/.env.example", "A=");
        let on_terminal = |options: &[&str]| {
            let call = lab.run(options.iter().chain(&["true"])).through(PtyRun::SESSION);
            let (code, screen) = PtyRun::start(&call, 24, 300).end();
            assert_eq!(code, 0, "{screen}");
            screen
        };
        let screen = on_terminal(&[]);
        let said = ["warning:", ".env", "--hide .env"].iter().all(|word| screen.contains(word));
        assert!(said, "{screen}");
        for options in [&["-q"][..], &["--hide", ".env"]] {
            let screen = on_terminal(options);
            assert!(!screen.contains("warning:"), "{options:?}: {screen}");
        }
        // In a log it would only repeat itself.
        assert_eq!(lab.sh(&[], "true").expect(0).err(), "");
    });
}

/// Also where an ordinary user's engine binds the tree as it is.
#[test]
fn every_engine_covers_what_is_there() {
    each_engine(|engine, lab| {
        lab.make_file("work/.envrc", "before\n");
        lab.make_file("work/.git/HEAD", "ref: refs/heads/main\n");
        lab.make_file("work/.git/config", "before\n");
        lab.make_file("work/.git/hooks/pre-commit", "before\n");
        let before = everything(&lab.work());
        let script = "for f in .envrc .git/config .git/hooks/pre-commit; do \
               echo x > $f; rm -rf $f; done; mv .git away; echo x > .git/index; \
             cat .envrc .git/config; rm .git/index; echo end";
        let done = lab.sh(&["-q", "--no-config"], script);
        assert_eq!(done.expect(0).out(), "before\nbefore\nend\n", "on {}: {done}", engine.name());
        assert_eq!(everything(&lab.work()), before, "on {}: {done}", engine.name());
    });
}
