//! Changes of state beside the way up.

use verbs_sys::current::verbs as v;

use super::{Failed, Peer, Qp};

impl Qp {
    /// Moves it from RTS to SQD; `told`: an event is to say when all that has begun is complete.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn drain(&self, told: bool) -> Result<(), Failed> {
        self.modify(v::IBV_QP_STATE | v::IBV_QP_EN_SQD_ASYNC_NOTIFY, |attributes| {
            attributes.qp_state = v::IBV_QPS_SQD;
            attributes.en_sqd_async_notify = told.into();
        })
    }

    /// Changes the acknowledgement timeout, as can be in SQD.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn set_timeout(&self, timeout: u8) -> Result<(), Failed> {
        self.modify(v::IBV_QP_TIMEOUT, |attributes| attributes.timeout = timeout)
    }

    /// Changes the path to a peer, as can be in SQD: its packets get this traffic class.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn set_traffic_class(&self, peer: &Peer, traffic_class: u8) -> Result<(), Failed> {
        self.modify(v::IBV_QP_AV, |attributes| {
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.port_num = 1;
            attributes.ah_attr.grh.dgid = v::ibv_gid { raw: peer.gid };
            attributes.ah_attr.grh.sgid_index = peer.gid_index;
            attributes.ah_attr.grh.hop_limit = 64;
            attributes.ah_attr.grh.traffic_class = traffic_class;
        })
    }

    /// Changes the Q_Key of one of datagrams.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn set_qkey(&self, qkey: u32) -> Result<(), Failed> {
        self.modify(v::IBV_QP_QKEY, |attributes| attributes.qkey = qkey)
    }
}
