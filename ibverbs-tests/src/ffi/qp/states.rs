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

    /// Holds it to a rate, as can be in RTS and SQD.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn limit_rate(&self, mut rate: v::ibv_qp_rate_limit_attr) -> Result<(), Failed> {
        let table = self.pd().context().extended().expect("libibverbs' contexts are extended");
        // SAFETY: the table lives as long as the context, whose library has put a function into each of its places; the
        // QP lives, the attributes are whole.
        let result = unsafe {
            let modify = table.as_ref().modify_qp_rate_limit.expect("the library has one");
            modify(self.raw(), &raw mut rate)
        };
        Failed::check("ibv_modify_qp_rate_limit", result)
    }

    /// Changes the Q_Key of one of datagrams.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn set_qkey(&self, qkey: u32) -> Result<(), Failed> {
        self.modify(v::IBV_QP_QKEY, |attributes| attributes.qkey = qkey)
    }
}
