//! A workspace whose `.git` is a file: a linked worktree, a submodule. Its repository is mounted with it, if the two name
//! each other and no run could have written the file.

use std::fs;
use std::path::{Path, PathBuf};

use belljar_testkit::{Done, Lab, each_actor, traced};
use serde_json::Value;

use super::control_files::git;

pub(super) const OVERLAY: [&str; 3] = ["--no-config", "--workspace", ".:overlay"];
pub(super) const RW: [&str; 1] = ["--no-config"];
pub(super) const COMMIT: &str = "set -e; git log --format=%s; echo 2 > file; \
    git -c user.name=in -c user.email=in@side commit -qam second";

/// A repository with one commit.
pub(super) fn repository(lab: &Lab, name: &str) -> PathBuf {
    let path = lab.make_directory(name);
    git(lab, &path, &["init", "-q", "."]);
    lab.make_file(format!("{name}/file"), "1\n");
    git(lab, &path, &["add", "file"]);
    git(lab, &path, &["commit", "-q", "-m", "first"]);
    path
}

/// The workspace as a worktree of a repository, which has another one beside it.
pub(super) fn linked_worktree(lab: &Lab, repository: &Path) {
    let work = lab.work();
    git(lab, repository, &["worktree", "add", "-q", "-b", "feature", path(&work)]);
    let other = lab.make_directory("other-worktree");
    git(lab, repository, &["worktree", "add", "-q", "-b", "other", path(&other)]);
}

pub(super) fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(super) fn log_of(lab: &Lab, directory: &Path) -> String {
    git(lab, directory, &["log", "--format=%s"])
}

/// The run's id.
pub(super) fn done(result: &Value) -> String {
    assert_eq!(result["exit"]["code"], 0, "{result:#}");
    result["id"].as_str().unwrap().to_owned()
}

pub(super) fn apply(lab: &Lab, id: &str) -> Done {
    let done = lab.belljar(["apply", "--yes", id]).done();
    done.expect(0);
    done
}

/// Nothing was started.
pub(super) fn refused(done: &Done, words: &[&str]) {
    done.expect(125).says(words).says(&["-c sandbox.git=off"]);
}

#[test]
fn a_commit_in_a_linked_worktree_is_reviewed_and_applied() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        linked_worktree(lab, &repository);
        let common = repository.join(".git");
        let script = format!(
            "{COMMIT}; cd {}; echo x > hooks/pre-commit; git config core.pager evil; \
             echo x > worktrees/other-worktree/HEAD; test ! -e {}",
            common.display(),
            lab.path("other-worktree").display()
        );
        let id = done(&lab.sh_json(&OVERLAY, &script));
        assert_eq!(log_of(lab, &lab.work()), "first\n", "nothing comes by itself");
        let shown = lab.belljar(["diff", &id]).done();
        shown.expect(0).prints(&["M file", "of git's own data", "A hooks/pre-commit", "M config"]);
        let listed = lab.belljar(["diff", "--json", &id]).done().json();
        let sources: Vec<&str> = listed["trees"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t["source"].as_str().unwrap())
            .collect();
        assert_eq!(sources.len(), 2, "{listed:#}");
        assert!(sources.contains(&path(&common.canonicalize().unwrap())), "{sources:?}");

        apply(lab, &id).prints(&[
            "held back",
            "git runs it as a hook",
            "git runs what its keys name",
            "it is about another worktree of the repository",
        ]);
        assert_eq!(log_of(lab, &lab.work()), "second\nfirst\n");
        assert_eq!(git(lab, &lab.work(), &["status", "--short"]), "");
        assert_eq!(log_of(lab, &repository), "first\n", "the branch of the main worktree");
        assert_eq!(git(lab, &repository, &["log", "--format=%s", "feature"]), "second\nfirst\n");
        assert_eq!(log_of(lab, &lab.path("other-worktree")), "first\n");
        assert!(!common.join("hooks/pre-commit").exists());
        assert!(!fs::read_to_string(common.join("config")).unwrap().contains("evil"));
        git(lab, &repository, &["fsck", "--strict"]);

        // What a run wrote is in the tree now; the link is the one that was there before.
        let again = lab.sh(&OVERLAY, "git log --format=%s");
        assert_eq!(again.expect(0).out(), "second\nfirst\n");
    });
}

#[test]
fn a_repository_goes_with_a_writable_worktree_and_its_control_files_do_not() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        linked_worktree(lab, &repository);
        let common = repository.join(".git");
        let read_only = "Read-only file system";
        lab.sh(&RW, COMMIT).expect(0);
        assert_eq!(log_of(lab, &lab.work()), "second\nfirst\n", "at once");
        let tries = [
            "echo x > hooks/pre-commit",
            "echo x >> config",
            "echo x > worktrees/other-worktree/HEAD",
            "rm worktrees/other-worktree/index",
            "echo x > worktrees/work/commondir",
            "echo x > worktrees/work/gitdir",
        ];
        for attempt in tries {
            let script = format!("cd {}; {attempt}", common.display());
            let done = lab.sh(&RW, &script);
            assert!(done.code() != 0 && done.err().contains(read_only), "{attempt}: {done}");
        }
        let shown = lab.sh(&RW, "git worktree prune -v; git worktree list; git gc -q; cat .git");
        shown.expect(0).prints(&[path(&lab.work()), "gitdir: "]);
        assert_eq!(log_of(lab, &lab.path("other-worktree")), "first\n");
        assert_eq!(log_of(lab, &lab.work()), "second\nfirst\n");
        git(lab, &repository, &["fsck", "--strict"]);
        // The control, and what the operator lets through.
        lab.sh(&RW, &format!("echo x > {}/description", common.display())).expect(0);
        lab.sh(&["--no-config", "--allow-control", ".git/config"], "git config a.b c").expect(0);
        assert_eq!(git(lab, &repository, &["config", "a.b"]), "c\n");

        let read = ["--no-config", "--workspace", ".:ro"];
        assert_eq!(lab.sh(&read, "git log --format=%s").expect(0).out(), "second\nfirst\n");
        let done = lab.sh(&read, &format!("echo x > {}/description", common.display()));
        assert!(done.code() != 0 && done.err().contains(read_only), "{done}");
    });
}

#[test]
fn a_submodule_has_its_repository() {
    each_actor(|lab| {
        let library = repository(lab, "library");
        let project = repository(lab, "project");
        git(lab, &project, &["submodule", "--quiet", "add", path(&library), "lib"]);
        git(lab, &project, &["commit", "-q", "-m", "with library"]);
        let work = project.join("lib");
        assert!(fs::read_to_string(work.join(".git")).unwrap().contains("gitdir: ../"));
        let run = |words: &[&str], script: &str| {
            let command = ["--", "sh", "-c", script];
            lab.run(words.iter().chain(&command)).from(work.clone()).done()
        };
        let id = done(&run(&["--json", OVERLAY[0], OVERLAY[1], OVERLAY[2]], COMMIT).json());
        assert_eq!(log_of(lab, &work), "first\n");
        lab.belljar(["diff", &id]).done().expect(0).prints(&["M file", "of git's own data"]);
        apply(lab, &id);
        assert_eq!(log_of(lab, &work), "second\nfirst\n");
        assert_eq!(git(lab, &project, &["status", "--short"]), " M lib\n");
        // From another path a relative link leads elsewhere: git does not work, and the run says why.
        let moved = ["--no-config", "-c", "sandbox.workspace.target=/elsewhere"];
        let done = run(&moved, "pwd; git log");
        done.expect(128).says(&["git does not work in this run", "relative path"]);
        assert_eq!(done.out(), "/elsewhere\n");
    });
}

#[test]
fn a_worktree_of_a_bare_repository_has_it() {
    each_actor(|lab| {
        let source = repository(lab, "source");
        let bare = lab.make_directory("bare-repository");
        git(lab, &source, &["clone", "-q", "--bare", path(&source), path(&bare)]);
        linked_worktree(lab, &bare);
        let script = format!("{COMMIT}; echo x > {}/hooks/update", bare.display());
        let id = done(&lab.sh_json(&OVERLAY, &script));
        apply(lab, &id).prints(&["A hooks/update", "git runs it as a hook"]);
        assert_eq!(git(lab, &bare, &["log", "--format=%s", "feature"]), "second\nfirst\n");
        assert!(!bare.join("hooks/update").exists());
        let done = lab.sh(&RW, &format!("echo x > {}/hooks/update", bare.display()));
        assert!(done.err().contains("Read-only file system"), "{done}");
    });
}

#[test]
fn a_moved_worktree_is_refused_until_it_is_repaired() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        let before = lab.make_directory("before");
        git(lab, &repository, &["worktree", "add", "-q", path(&before)]);
        fs::remove_dir(lab.work()).unwrap();
        fs::rename(&before, lab.work()).unwrap();
        let repair = format!("git -C {} worktree repair", lab.work().display());
        refused(&lab.sh(&OVERLAY, "git log"), &[path(&before), &repair]);
        lab.belljar(["prune"]).done().expect(0); // which is not about the workspace
        git(lab, &lab.work(), &["worktree", "repair"]);
        assert_eq!(lab.sh(&OVERLAY, "git log --format=%s").expect(0).out(), "first\n");
    });
}

#[test]
fn a_git_file_that_names_another_repository_is_refused() {
    each_actor(|lab| {
        let victim = repository(lab, "victim");
        let other = lab.make_directory("other-worktree");
        git(lab, &victim, &["worktree", "add", "-q", path(&other)]);
        let own = repository(lab, "own");
        linked_worktree_at(lab, &own, &lab.work());
        let honest = fs::read_to_string(lab.work().join(".git")).unwrap();
        let secret = victim.join(".git");
        let admin = own.join(".git/worktrees/work");
        let name = |directory: &Path| {
            lab.make_file("work/.git", format!("gitdir: {}\n", directory.display()));
        };
        // By the repository itself, by a worktree of it, by a path with links, by one that names it as its own.
        name(&secret);
        refused(&lab.sh(&RW, "true"), &["does not name", "as its work tree"]);
        name(&secret.join("worktrees/other-worktree"));
        refused(&lab.sh(&RW, "true"), &["which belongs to the worktree at", path(&other)]);
        std::os::unix::fs::symlink(&secret, lab.path("alias")).unwrap();
        name(&lab.path("alias"));
        refused(&lab.sh(&RW, "true"), &["does not name", "as its work tree"]);
        lab.make_file("work/.git", &honest);
        let common = fs::read_to_string(admin.join("commondir")).unwrap();
        fs::write(admin.join("commondir"), format!("{}\n", secret.display())).unwrap();
        refused(&lab.sh(&RW, "true"), &["commondir", "another directory"]);
        fs::write(admin.join("commondir"), common).unwrap();
        // The control: the honest one, and a run without any.
        assert_eq!(lab.sh(&RW, "git log --format=%s").expect(0).out(), "first\n");
        // It was the operator's then, and is another one now, in a tree that a run could write.
        name(&secret);
        refused(&lab.sh(&RW, "true"), &["has changed since it was trusted", "belljar trust"]);
        lab.sh(&["--no-config", "-c", "sandbox.git=off"], "test ! -e /repository").expect(0);
    });
}

fn linked_worktree_at(lab: &Lab, repository: &Path, place: &Path) {
    git(lab, repository, &["worktree", "add", "-q", "-b", "feature", path(place)]);
}

#[test]
fn a_git_file_that_an_earlier_run_wrote_is_refused() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        linked_worktree(lab, &repository);
        let link = lab.work().join(".git");
        let content = fs::read_to_string(&link).unwrap();
        fs::remove_file(&link).unwrap();
        lab.sh(&RW, &format!("echo '{}' > .git", content.trim())).expect(0);
        assert_eq!(
            fs::read_to_string(&link).unwrap(),
            content,
            "what git itself would have written"
        );
        let done = lab.sh(&RW, "true");
        refused(&done, &["where a run could have changed it", "belljar trust", path(&link)]);
        lab.belljar(["trust", path(&link)]).done().expect(0);
        assert_eq!(lab.sh(&RW, "git log --format=%s").expect(0).out(), "first\n");
    });
}

#[test]
fn a_repository_can_be_left_out() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        linked_worktree(lab, &repository);
        let script = format!("pwd; git log; test ! -e {}", repository.display());
        let [config, workspace, overlay] = OVERLAY;
        let off = lab.sh(&[config, workspace, overlay, "-c", "sandbox.git=off"], &script);
        assert_eq!(off.expect(0).out(), "/workspace\n");
        assert!(off.err().contains("not a git repository"), "{off}");
        let hidden = lab.sh(&[config, workspace, overlay, "--hide", ".git"], &script);
        assert_eq!(hidden.expect(0).out(), "/workspace\n");
        // The control: without either, it is at its own path, and so is the workspace.
        let on = lab
            .sh(&OVERLAY, &format!("pwd; git log --format=%s; test -e {}", repository.display()));
        assert_eq!(on.expect(0).out(), format!("{}\nfirst\n", lab.work().display()));
    });
}

#[test]
fn a_kept_sandbox_is_reused_whatever_other_worktrees_there_are() {
    let lab = Lab::me();
    let repository = repository(&lab, "repository");
    linked_worktree(&lab, &repository);
    let words =
        ["-q", "--no-config", "--name", "kept", "--reuse", "--", "git", "log", "--format=%s"];
    assert_eq!(lab.run(words).done().expect(0).out(), "first\n");
    let third = lab.make_directory("third");
    git(&lab, &repository, &["worktree", "add", "-q", "-b", "third", path(&third)]);
    assert_eq!(lab.run(words).done().expect(0).out(), "first\n");
    assert_eq!(lab.live().len(), 1);
    lab.belljar(["stop", "-q", "kept"]).done().expect(0);
}

#[test]
fn links_that_lead_nowhere_are_told_and_those_in_the_workspace_are_as_before() {
    each_actor(|lab| {
        lab.make_file("work/.git", "gitdir: /nowhere/.git/worktrees/x\n");
        let done = lab.sh(&RW, "pwd");
        assert_eq!(done.expect(0).out(), "/workspace\n");
        done.says(&["git does not work in this run", "/nowhere/.git/worktrees/x"]);
        lab.make_file("work/.git", "nonsense\n");
        lab.sh(&["--no-config", "-c", "sandbox.git=auto"], "true").expect(125); // a run could have written it
        let other = Lab::new(lab.actor);
        other.make_file("work/.git", "nonsense\n");
        other.sh(&RW, "true").expect(0).says(&["does not name a git directory"]);
        let inside = Lab::new(lab.actor);
        git(&inside, &inside.work(), &["init", "-q", "--bare", ".bare"]);
        inside.make_file("work/.git", "gitdir: ./.bare\n");
        let done = inside.sh(&RW, "pwd; git rev-parse --git-dir");
        assert_eq!(done.expect(0).out(), "/workspace\n/workspace/.bare\n");
        assert!(!done.err().contains("git does not work"), "{done}");
    });
}

#[test]
fn a_repository_that_holds_belljars_own_directory_is_never_mounted() {
    each_actor(|lab| {
        let mut lab = Lab::new(lab.actor);
        let repository = repository(&lab, "repository");
        linked_worktree(&lab, &repository);
        lab.sh(&OVERLAY, "git log").expect(0);
        lab.use_home(repository.join(".git/state"));
        let done = lab.sh(&OVERLAY, "git log");
        done.expect(125).says(&["Belljar's own directory", "never mounted"]);
    });
}

#[test]
fn a_plain_repository_costs_one_look_and_is_as_before() {
    let lab = Lab::me();
    git(&lab, &lab.work(), &["init", "-q", "."]);
    let looks = |mode: &str| {
        let trace = lab.path(format!("trace-{mode}"));
        let setting = format!("sandbox.git={mode}");
        let call = lab.run(["--no-config", "-q", "-c", &setting, "--", "pwd"]);
        let done = traced(call, &trace).done();
        assert_eq!(done.expect(0).out(), "/workspace\n");
        let name = format!("\"{}\"", lab.work().join(".git").display());
        fs::read_to_string(&trace).unwrap().lines().filter(|line| line.contains(&name)).count()
    };
    let (on, off) = (looks("auto"), looks("off"));
    assert_eq!(on, off + 1, "one call more");
    let id = done(&lab.sh_json(&RW, "true"));
    let record = lab.record(&id);
    assert!(record["spec"]["git_directory"].is_null(), "{record:#}");
    assert_eq!(record["spec"]["mounts"].as_array().map(Vec::len), Some(0), "{record:#}");
}
