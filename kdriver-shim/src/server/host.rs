//! The ports as the host has and shows them.

use std::time::Instant;

use host_view::shadow_device::ShadowDevices;

use super::{Parts, Server};
use crate::error::Error;
use crate::machine::OnMachine;

impl Server {
    /// Makes the cards' addresses follow those of the kernel's devices.
    ///
    /// # Errors
    /// [`Error::Os`] when the news of them cannot be waited for.
    pub fn follow_addresses_of(&mut self, shadow: ShadowDevices) -> Result<(), Error> {
        let Parts { mut around, ports, poller, .. } = self.parts();
        ports.follow_addresses_of(&mut around, poller, shadow)
    }

    /// Makes the addresses of cards on the machine's own network follow the machine's.
    ///
    /// # Errors
    /// [`Error::Os`] when the news of them cannot be waited for.
    pub fn follow_machine_of(&mut self, machine: OnMachine) -> Result<(), Error> {
        let Parts { mut around, ports, poller, .. } = self.parts();
        ports.follow_machine_of(&mut around, poller, machine)
    }

    /// Takes note of addresses that have changed, and tells the programs.
    pub(super) fn follow_addresses(&mut self) {
        let Parts { mut around, ports, .. } = self.parts();
        ports.follow_addresses(&mut around);
    }

    /// Takes note of addresses and links of the machine's that have changed, and tells the programs.
    pub(super) fn follow_machine(&mut self) {
        let Parts { mut around, ports, .. } = self.parts();
        ports.follow_machine(&mut around);
    }

    /// Writes the files of the ports if it is time, and logs news of the kernel.
    pub(super) fn write_ports(&mut self, now: Instant) {
        let programs = self.has_programs();
        let Parts { mut around, ports, .. } = self.parts();
        ports.write(&mut around, programs, now);
    }

    /// Writes the files of the ports now, for one of them has changed.
    pub(super) fn write_changed_ports(&mut self) {
        let now = Instant::now();
        self.ports.hurry(now);
        self.write_ports(now);
    }
}
