//! Processes that are stopped, killed, or gone with the machine.

use std::time::Duration;

use belljar::spec::StopReason;
use belljar_testkit::{Lab, as_root, each_user, marker, processes_of, send, wait_until_gone};
use rustix::process::Signal;

/// Deadlines run on while the launcher is stopped: by the clock, not by its own turns.
#[test]
fn a_launcher_that_slept_keeps_its_deadline() {
    each_user(|lab| {
        let marker = marker();
        let script = format!("echo ready; sleep {marker}");
        let words = ["--no-config", "--timeout", "2s", "--stop-timeout", "1s"];
        let live = lab.run(words.iter().chain(&["--", "sh", "-c", &script])).spawn();
        live.wait_for_output("ready");
        live.signal(Signal::STOP);
        std::thread::sleep(Duration::from_secs(4));
        live.signal(Signal::CONT);
        let done = live.done();
        // It was late already when it woke up, so it has no time to give.
        assert!(done.took < Duration::from_secs(7), "{done}");
        done.expect(124);
        wait_until_gone(Duration::from_secs(3), &marker, &lab.exe);
        let ends = lab.assert_all_sound();
        assert!(ends.values().all(|end| end["reason"] == "deadline"), "{ends:?}");

        // The control: stopped for as long, and no deadline passed.
        let live = lab.run(["--no-config", "--timeout", "50s", "--", "sh", "-c", "echo a"]).spawn();
        live.signal(Signal::STOP);
        std::thread::sleep(Duration::from_secs(1));
        live.signal(Signal::CONT);
        assert_eq!(live.done().expect(0).out(), "a\n");
    });
}

#[test]
fn a_killed_pid_1_is_recorded_as_lost() {
    each_user(|lab| {
        let marker = marker();
        let script = format!("echo ready; exec sleep {marker}");
        let live = lab.run(["--no-config", "--", "sh", "-c", &script]).spawn();
        live.wait_for_output("ready");
        let inits = lab.inits();
        assert_eq!(inits.len(), 1, "{inits:?}");
        send(inits[0], Signal::KILL);
        let done = live.done();
        assert_ne!(done.code(), 0, "{done}");
        wait_until_gone(Duration::from_secs(3), &marker, &lab.exe);
        lab.assert_no_traces(&lab.runs());
        let ends = lab.assert_all_sound();
        assert!(ends.values().all(|end| end["reason"] == "lost"), "{ends:?}");
        assert_eq!(ends.len(), 1);
    });
}

/// The same for a kept sandbox, whose supervisor tells whoever asks.
#[test]
fn a_killed_pid_1_of_a_kept_sandbox_is_told_to_its_owner() {
    let lab = Lab::me();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = belljar::Sandbox::builder()
            .no_config()
            .no_workspace()
            .home(lab.home())
            .belljar(&lab.exe)
            .start()
            .await
            .unwrap();
        let output = sandbox.exec(["echo", "here"]).output().await.unwrap();
        assert_eq!(output.stdout, b"here\n"); // the control
        let inits = lab.inits();
        assert_eq!(inits.len(), 1, "{inits:?}");
        send(inits[0], Signal::KILL);
        let report = sandbox.client().stopped().await.unwrap();
        assert_eq!(report.reason, StopReason::Lost);
        sandbox.exec(["true"]).output().await.unwrap_err();
    });
    lab.assert_no_traces(&lab.runs());
    lab.assert_all_sound();
}

/// The supervisor of a kept sandbox dies: so does all inside, and the next command closes the record.
#[test]
fn a_killed_supervisor_takes_its_sandbox_along() {
    let lab = Lab::me();
    let marker = marker();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = belljar::Sandbox::builder()
            .no_config()
            .no_workspace()
            .home(lab.home())
            .belljar(&lab.exe)
            .start()
            .await
            .unwrap();
        let script = format!("(setsid sleep {marker} &); echo ready; exec sleep {marker}");
        let mut running = sandbox.exec(["sh", "-c", &script]).spawn().await.unwrap();
        assert_eq!(running.next().await.unwrap().bytes, b"ready\n");
        let supervisors = belljar_testkit::processes_with("__supervise");
        let ours: Vec<u32> =
            supervisors.into_iter().filter(|pid| processes_of(&lab.exe).contains(pid)).collect();
        assert_eq!(ours.len(), 1);
        send(ours[0], Signal::KILL);
        running.wait().await.unwrap_err();
    });
    wait_until_gone(Duration::from_secs(3), &marker, &lab.exe);
    assert_eq!(lab.reconcile().lost.len(), 1);
    lab.assert_no_traces(&lab.runs());
    let ends = lab.assert_all_sound();
    assert!(ends.values().all(|end| end["detail"] == "its supervisor died"), "{ends:?}");
}

/// The machine was started anew: told apart by the boot id, which a mount over it changes here for one
/// thread only.
#[test]
fn a_run_of_before_a_reboot_is_lost_with_that_reason() {
    if !as_root() {
        eprintln!("NOT CHECKED: only root can mount another boot id");
        return;
    }
    let lab = Lab::me();
    let live = lab.run(["--no-config", "--", "sh", "-c", "echo ready; sleep 50"]).spawn();
    live.wait_for_output("ready");
    live.signal(Signal::KILL);
    drop(live);
    lab.assert_nothing_lives(&lab.live());
    let other = lab.make_file("tmp/boot_id", "11111111-2222-3333-4444-555555555555\n");
    let found = std::thread::scope(|scope| {
        let after_the_reboot = || {
            use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
            use rustix::thread::UnshareFlags;
            #[allow(deprecated, reason = "of this thread only the mounts change, no descriptors")]
            rustix::thread::unshare(UnshareFlags::NEWNS).unwrap();
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private).unwrap();
            mount_bind(&other, "/proc/sys/kernel/random/boot_id").unwrap();
            lab.reconcile()
        };
        scope.spawn(after_the_reboot).join().unwrap()
    });
    assert_eq!(found.lost.len(), 1, "{found:?}");
    lab.assert_no_traces(&lab.runs());
    let ends = lab.assert_all_sound();
    let end = ends.values().next().unwrap();
    assert_eq!(end["reason"], "lost");
    assert_eq!(end["detail"], "the machine was started again meanwhile");
}
