//! Reaps the children of PID 1: commands, their shims, and orphans.

use std::time::Duration;

use belljar_spec::ExitStatus;
use belljar_spec::wire::FromInit;
use belljar_sys::{StepError, signal, step};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

use super::{InitError, Watch};
use crate::init::command::{ChildWas, Command};
use crate::init::exit_status;
use crate::init::tree::{Round, Tree};

impl Watch {
    /// Collects every child that ended: commands, shims, and orphans that came to PID 1.
    pub(super) fn reap(&mut self) -> Result<(), InitError> {
        while step("read a signal", signal::next(&self.children))?.is_some() {}
        let mut orphaned = false;
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if status.stopped() => self.child_stopped(pid),
                Ok(Some((pid, status))) => {
                    if let Some(status) = exit_status(status) {
                        orphaned |= self.child_ended(pid, status) == ChildWas::KilledShim;
                    }
                }
                Ok(None) | Err(Errno::CHILD) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(StepError::new("reap", error).into()),
            }
        }
        if orphaned {
            self.end_orphans();
        }
        Ok(())
    }

    /// Only a process inside can have stopped a shim, and a stopped shim does not report its command's end.
    fn child_stopped(&self, pid: Pid) {
        let is_shim = |command: &Command| command.is_below(pid);
        let lingers = self.lingering.values().any(|shim| shim.pid == pid);
        if lingers || self.commands.values().any(is_shim) {
            let _ = kill_process(pid, Signal::CONT);
        }
    }

    fn child_ended(&mut self, pid: Pid, status: ExitStatus) -> ChildWas {
        if let Some(command) =
            self.commands.values_mut().find(|command| command.child() == Some(pid))
        {
            return command.child_ended(status);
        }
        let exec = self.lingering.iter().find(|(_, shim)| shim.pid == pid).map(|(exec, _)| *exec);
        match exec.and_then(|exec| self.lingering.remove(&exec)) {
            Some(_) if status != ExitStatus::Code(0) => ChildWas::KilledShim,
            Some(_) => ChildWas::Shim,
            None => ChildWas::Command, // of no interest: an orphan
        }
    }

    /// Ends what came to PID 1 because a process inside killed a shim. It cannot be told from orphans of
    /// commands without a shim, so those end too; a process that kills shims could have killed them anyway.
    fn end_orphans(&self) {
        let shims = self.lingering.values().map(|shim| shim.pid);
        let spared: Vec<Pid> =
            self.commands.values().filter_map(Command::child).chain(shims).collect();
        let tree = Tree { root: getpid(), spared: &spared };
        for _ in 0..200 {
            if tree.end_once() == Round::Nothing {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// An end is reported after everything that came before it: the report, and the terminal's output.
    pub(super) fn finish_commands(&mut self) -> Result<(), InitError> {
        let ended: Vec<u32> = self
            .commands
            .iter()
            .filter(|(_, command)| command.is_over())
            .map(|(exec, _)| *exec)
            .collect();
        for exec in ended {
            if !self.pumps.drained(exec, &mut self.mux) {
                continue;
            }
            let Some(command) = self.commands.remove(&exec) else { continue };
            let (status, shim) = command.finish();
            if let Some(shim) = shim {
                self.lingering.insert(exec, shim);
            }
            if let Some(status) = status {
                self.report_calls()?; // the launcher may end everything when it knows of the exit
                self.mux.send(&FromInit::Exited { exec, status })?;
            }
        }
        Ok(())
    }
}
