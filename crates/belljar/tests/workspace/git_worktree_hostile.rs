//! What a run in a linked worktree cannot do to its repository: to the main checkout, to other worktrees, to what the
//! next run mounts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use belljar_testkit::{Done, Lab, each_actor};
use serde_json::Value;

use super::control_files::git;
use super::git_worktree::{
    COMMIT, OVERLAY, RW, apply, done, linked_worktree, log_of, path, refused, repository,
};

/// Puts a file into the index of the main checkout, and its `HEAD` elsewhere.
const PLANT: &str = "blob=$(echo planted | git hash-object -w --stdin); \
    GIT_DIR=$C git update-index --add --cacheinfo 100644,$blob,planted; \
    GIT_DIR=$C git symbolic-ref HEAD refs/heads/other; \
    git rev-parse feature > $C/MERGE_HEAD; echo x > $C/logs/HEAD; \
    mkdir -p $C/rebase-merge $C/refs/bisect; echo 'exec evil' > $C/rebase-merge/git-rebase-todo; \
    git rev-parse feature > $C/refs/bisect/bad";

fn with_repository(common: &Path, script: &str) -> String {
    format!("C={}; {script}", common.display())
}

/// Nothing of it is in what the operator commits next.
fn main_checkout_is_as_before(lab: &Lab, repository: &Path) {
    assert_eq!(git(lab, repository, &["symbolic-ref", "HEAD"]), git_main(lab, repository));
    fs::write(repository.join("next"), "next\n").unwrap();
    git(lab, repository, &["add", "next"]);
    git(lab, repository, &["commit", "-q", "-m", "next"]);
    let committed = git(lab, repository, &["show", "--format=%P", "--name-only", "HEAD"]);
    assert!(committed.contains("next") && !committed.contains("planted"), "{committed}");
    let parents = committed.lines().next().unwrap().split_whitespace().count();
    assert_eq!(parents, 1, "{committed}");
}

fn git_main(lab: &Lab, repository: &Path) -> String {
    let branches = git(lab, repository, &["for-each-ref", "--format=%(refname)", "refs/heads"]);
    let is_main = |name: &&str| !name.ends_with("/feature") && !name.ends_with("/other");
    format!("{}\n", branches.lines().find(is_main).unwrap())
}

#[test]
fn the_main_checkout_is_not_changed_by_apply() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        linked_worktree(lab, &repository);
        let common = repository.join(".git");
        let script = with_repository(&common, &format!("{COMMIT}; set +e; {PLANT}; true"));
        let id = done(&lab.sh_json(&OVERLAY, &script));
        let applied = apply(lab, &id);
        applied.prints(&["held back", "it is about another worktree of the repository"]);
        for name in ["MERGE_HEAD", "rebase-merge", "refs/bisect"] {
            assert!(!common.join(name).exists(), "{name}: {applied}");
        }
        // The control: the run's own commit is there.
        assert_eq!(log_of(lab, &lab.work()), "second\nfirst\n");
        assert_eq!(git(lab, &lab.work(), &["status", "--short"]), "");
        main_checkout_is_as_before(lab, &repository);
    });
}

#[test]
fn the_main_checkout_is_read_only_to_a_writable_worktree() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        linked_worktree(lab, &repository);
        fs::write(repository.join(".git/ORIG_HEAD"), "x\n").unwrap();
        let common = repository.join(".git");
        let tries = [
            "echo x > $C/HEAD",
            "echo x > $C/index",
            "echo x > $C/ORIG_HEAD",
            "echo x >> $C/logs/HEAD",
            "GIT_DIR=$C git symbolic-ref HEAD refs/heads/other",
            "cp $C/HEAD $C/n; mv -f $C/n $C/HEAD",
            "mv $C/logs $C/l",
            "mv $C/worktrees $C/w",
        ];
        for attempt in tries {
            let done = lab.sh(&RW, &with_repository(&common, attempt));
            assert_ne!(done.code(), 0, "{attempt}: {done}");
        }
        fs::remove_file(common.join("n")).unwrap();
        // The control: a commit, a branch, what all worktrees share, and a collection.
        let honest =
            "git branch more; git repack -dq; git pack-refs --all; echo x > $C/description";
        lab.sh(&RW, &with_repository(&common, &format!("{COMMIT}; {honest}"))).expect(0);
        assert_eq!(log_of(lab, &lab.work()), "second\nfirst\n");
        git(lab, &repository, &["branch", "-D", "more"]);
        main_checkout_is_as_before(lab, &repository);
        // What is not there yet can be made, and that is told.
        let script = "git rev-parse feature > $C/MERGE_HEAD; mkdir -p $C/refs/bisect; \
                      git rev-parse feature > $C/refs/bisect/bad; mkdir $C/worktrees/new; \
                      echo x > $C/worktrees/new/HEAD; git -c user.name=in -c user.email=in@side commit -q --allow-empty -m third";
        let result = lab.sh_json(&RW, &with_repository(&common, script));
        done(&result);
        let new = new_control_files(&result);
        for name in ["MERGE_HEAD", "refs/bisect/bad", "worktrees/new/HEAD"] {
            assert!(new.iter().any(|path| path.ends_with(name)), "{name} in {new:?}");
        }
        assert_eq!(new.len(), 3, "{new:?}");
    });
}

fn new_control_files(result: &Value) -> Vec<String> {
    let files = result["new_control_files"].as_array().cloned().unwrap_or_default();
    files.iter().map(|file| file.as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_bare_repositorys_own_names_are_not_a_worktrees() {
    each_actor(|lab| {
        let source = repository(lab, "source");
        let bare = lab.make_directory("bare-repository");
        git(lab, &source, &["clone", "-q", "--bare", path(&source), path(&bare)]);
        linked_worktree(lab, &bare);
        let head = fs::read_to_string(bare.join("HEAD")).unwrap();
        let done_rw = lab.sh(&RW, &with_repository(&bare, "echo ref: refs/heads/other > $C/HEAD"));
        assert!(done_rw.err().contains("Read-only file system"), "{done_rw}");
        let todo = "own=$(git rev-parse --git-dir); mkdir $own/rebase-merge; \
                    echo 'exec evil' > $own/rebase-merge/git-rebase-todo";
        let script = format!("{COMMIT}; echo ref: refs/heads/other > $C/HEAD; {todo}");
        let result = lab.sh_json(&OVERLAY, &with_repository(&bare, &script));
        let id = done(&result);
        lab.belljar(["diff", &id]).done().prints(&["git runs it when the rebase is continued"]);
        apply(lab, &id).prints(&["it is about another worktree of the repository"]);
        assert_eq!(fs::read_to_string(bare.join("HEAD")).unwrap(), head);
        assert_eq!(git(lab, &bare, &["log", "--format=%s", "feature"]), "second\nfirst\n");
        // It is a part of the run's own worktree, and so applied; in an rw tree it is told in the same way.
        assert!(bare.join("worktrees/work/rebase-merge/git-rebase-todo").exists());
        fs::remove_dir_all(bare.join("worktrees/work/rebase-merge")).unwrap();
        let result = lab.sh_json(&RW, todo);
        let id = done(&result);
        lab.belljar(["show", &id]).done().prints(&["rebase-merge/git-rebase-todo"]);
    });
}

#[test]
fn a_worktree_that_came_later_is_not_the_runs_either() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        linked_worktree(lab, &repository);
        let common = repository.join(".git");
        let script = "mkdir $C/worktrees/third; echo 'ref: refs/heads/feature' > $C/worktrees/third/HEAD; \
                      echo x > $C/worktrees/work/note";
        let id = done(&lab.sh_json(&OVERLAY, &with_repository(&common, script)));
        let third = lab.make_directory("third");
        git(lab, &repository, &["worktree", "add", "-q", "-b", "third", path(&third)]);
        apply(lab, &id).prints(&["it is about another worktree of the repository"]);
        assert_eq!(git(lab, &third, &["symbolic-ref", "HEAD"]), "refs/heads/third\n");
        assert!(common.join("worktrees/work/note").exists(), "the control");
        // The next one to write there finds it covered.
        let done = lab.sh(&RW, &with_repository(&common, "echo x > $C/worktrees/third/HEAD"));
        assert!(done.err().contains("Read-only file system"), "{done}");
    });
}

#[test]
fn a_link_that_leads_to_another_repository_than_before_is_refused() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        linked_worktree(lab, &repository);
        symlink(&repository, lab.path("alias")).unwrap();
        let link = lab.path("alias/.git/worktrees/work");
        lab.make_file("work/.git", format!("gitdir: {}\n", link.display()));
        assert_eq!(lab.sh(&RW, "git log --format=%s").expect(0).out(), "first\n");
        assert_eq!(lab.sh(&RW, "git log --format=%s").expect(0).out(), "first\n", "the control");
        let copy = lab.path("copy");
        let copied =
            std::process::Command::new("cp").arg("-a").args([&repository, &copy]).status().unwrap();
        assert!(copied.success());
        fs::remove_file(lab.path("alias")).unwrap();
        symlink(&copy, lab.path("alias")).unwrap();
        refused(&lab.sh(&RW, "true"), &["leads elsewhere", path(&copy), "belljar trust"]);
        let trusted = lab.belljar(["trust", path(&lab.work().join(".git"))]).done();
        trusted.expect(0).says(&[path(&copy.join(".git"))]);
        lab.sh(&RW, "true").expect(0);
    });
}

#[test]
fn what_only_looks_like_a_worktree_or_a_repository_is_refused() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        linked_worktree(lab, &repository);
        let admin = repository.join(".git/worktrees/work");
        fs::write(admin.join("config"), "[core]\n").unwrap();
        refused(&lab.sh(&OVERLAY, "true"), &["has a configuration of its own"]);
        fs::remove_file(admin.join("config")).unwrap();
        assert_eq!(lab.sh(&OVERLAY, "git log --format=%s").expect(0).out(), "first\n");
        let warned = |done: &Done, why: &str| {
            done.expect(0).says(&["git does not work in this run", why]);
        };
        fs::create_dir(repository.join(".git/reftable")).unwrap();
        warned(&lab.sh(&OVERLAY, "true"), "reftable");
        fs::remove_dir(repository.join(".git/reftable")).unwrap();
        fs::rename(repository.join(".git/refs"), lab.path("refs")).unwrap();
        fs::write(repository.join(".git/refs"), "").unwrap();
        warned(&lab.sh(&OVERLAY, "true"), "is not a repository");
    });
}

#[test]
fn a_second_configuration_counts_only_where_git_reads_it() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        let common = repository.join(".git");
        lab.make_file("work/.git", format!("gitdir: {}\n", common.display()));
        let second = format!("[core]\n\tworktree = {}\n", lab.work().display());
        fs::write(common.join("config.worktree"), second).unwrap();
        let done = lab.sh(&OVERLAY, "true");
        refused(&done, &["does not name", "as its work tree"]);
        assert!(!done.err().contains("git --git-dir"), "no command hands it over: {done}");
        git(lab, &repository, &["config", "extensions.worktreeConfig", "true"]);
        assert_eq!(lab.sh(&OVERLAY, "git log --format=%s").expect(0).out(), "first\n");
    });
}

#[test]
fn an_operators_own_mount_is_not_overridden() {
    each_actor(|lab| {
        let repository = repository(lab, "repository");
        linked_worktree(lab, &repository);
        let common = repository.join(".git");
        let write = with_repository(&common, "git log --format=%s; echo x > $C/description");
        assert_eq!(lab.sh(&RW, &write).expect(0).out(), "first\n", "the control");
        let same = format!("{0}:{0}:ro", repository.display());
        let done = lab.sh(&["--no-config", "-v", &same], &write);
        assert_eq!(done.out(), "first\n", "{done}");
        assert!(done.code() != 0 && done.err().contains("Read-only file system"), "{done}");
        let elsewhere = format!("{}:/seen:ro", repository.display());
        let done =
            lab.sh(&["--no-config", "-v", &elsewhere], &format!("test ! -e {}", common.display()));
        done.expect(0).says(&["git does not work in this run", "your own mount"]);
    });
}

#[test]
fn the_text_of_a_git_file_does_not_reach_the_terminal() {
    each_actor(|lab| {
        for hostile in ["/x\u{1b}]0;title\u{7}", "/x\u{202e}y", "/x\ny"] {
            let lab = Lab::new(lab.actor);
            lab.make_file("work/.git", format!("gitdir: {hostile}\n"));
            let done = lab.sh(&OVERLAY, "true");
            done.expect(0).says(&["does not name a git directory"]);
            assert!(!done.err().contains(hostile), "{:?}", done.err());
        }
    });
}
