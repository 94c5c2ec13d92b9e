//! The shell around the vFPGAs: its own registers, reconfiguration, and the way of interrupts.

use std::rc::Rc;

use fpga_regs::coyote::shell::Map;

use crate::interrupts::Interrupts;
use crate::reconfig::Reconfiguration;
use crate::xdma::Xdma;

/// The state of the shell itself.
pub(crate) struct Shell {
    /// The one of the published register maps that it has.
    pub(crate) map: Map,
    pub(crate) xdma: Xdma,
    pub(crate) reconfiguration: Reconfiguration,
    /// The datapath register: which vFPGAs are decoupled, or in reset.
    pub(crate) datapath: u64,
    /// TCP and RDMA offsets, which only keep written values.
    pub(crate) offsets: [u64; 2],
    vectors: Rc<dyn Interrupts>,
}

impl Shell {
    pub(crate) fn new(map: Map, vectors: Rc<dyn Interrupts>) -> Self {
        let (xdma, reconfiguration) = Default::default();
        Self { map, xdma, reconfiguration, datapath: 0, offsets: [0; 2], vectors }
    }

    /// Resets the state that a pulse on the shell's reset leaves alone, for a function-level reset.
    pub(crate) fn reset_function(&mut self) {
        self.xdma = Xdma::default();
        self.reconfiguration.reset();
        self.offsets = [0; 2];
    }

    /// Signals the vector of a user interrupt, unless it is disabled.
    pub(crate) fn signal(&self, interrupt: usize) {
        self.xdma.signal(interrupt, &*self.vectors);
    }
}
