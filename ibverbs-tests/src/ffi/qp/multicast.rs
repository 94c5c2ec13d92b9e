//! Multicast groups.

use verbs_sys::current::verbs as v;

use super::{Failed, Qp};

/// The queue pair number that stands for all in a multicast group.
pub const GROUP_QPN: u32 = 0xff_ffff;

impl Qp {
    /// Takes it into a multicast group.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn attach(&self, group: [u8; 16]) -> Result<(), Failed> {
        let (gid, attach) = (v::ibv_gid { raw: group }, self.pd.library().ibv_attach_mcast);
        // SAFETY: the QP lives, and so does the group.
        let result = unsafe { attach(self.raw.as_ptr(), &raw const gid, 0) };
        Failed::check("ibv_attach_mcast", result)
    }

    /// Takes it out of a multicast group.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn detach(&self, group: [u8; 16]) -> Result<(), Failed> {
        let (gid, detach) = (v::ibv_gid { raw: group }, self.pd.library().ibv_detach_mcast);
        // SAFETY: the QP lives, and so does the group.
        let result = unsafe { detach(self.raw.as_ptr(), &raw const gid, 0) };
        Failed::check("ibv_detach_mcast", result)
    }
}
