//! Starts the test network for the first case that needs it.

use std::ffi::OsStr;
use std::process::Command;

use super::{LIMIT, ProcessOutput, TestBed, TestBedError, process};
use crate::probe::PROBE;
use crate::world::{Maker, World};

impl TestBed {
    /// The test network of the egress cases.
    pub(crate) fn world(&self) -> Result<&World, TestBedError> {
        if let Some(world) = self.world.get() {
            return Ok(world);
        }
        let place = self.place()?;
        let world = World::start(&self.probe(), &place, Maker::Caller)?;
        Ok(self.world.get_or_init(|| world))
    }

    /// The same attempt in that network, with nothing between it and the servers but a proxy that asks nothing.
    pub(crate) fn in_world<W: AsRef<OsStr>>(
        &self,
        argv: impl IntoIterator<Item = W>,
    ) -> Result<ProcessOutput, TestBedError> {
        let line = self.world()?.wrapper();
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).arg(self.probe()).arg(PROBE).args(argv).current_dir(&self.root);
        process::to_the_end(&mut command, "the control", LIMIT)
    }
}
