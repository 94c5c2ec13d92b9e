//! The remains of a card that was reset: a device that reaches nothing.
//!
//! The function behind it is another device's from then on. So nothing here reads or writes it: commands fail as
//! those of a dead engine do, and destructions succeed, for the reset has ended the objects.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::engine::admin::{
    AllocDm, CopyDm, CreateAh, CreateCq, CreateKey, CreateQp, CreateRq, Membership, ModerateCq,
    ModifyKey, PortAttributes, ResizeCq,
};
use fpga_regs::engine::qp::Attributes;
use hostmem::{DmaMemory, EventFd};

use crate::backend::{CardBackend, DoorbellGrant, GrantKind, Identity};
use crate::device::{Device, Window};
use crate::engine::{Engine, EngineEvent, EngineLimits, Hear};
use crate::error::{Error, GONE};
use crate::gsi::Gsi;
use crate::iova::Arena;
use crate::relay::ClientRings;
use crate::shell::Shell;

impl Device {
    /// Parts the programs' objects from a card that was reset and is about to be brought up anew: a device of that
    /// number, which reaches nothing and has nothing to say.
    ///
    /// # Errors
    /// [`Error::Memory`] when descriptors run out: then nothing has changed.
    pub fn part(&mut self, number: u32) -> Result<Self, Error> {
        let (identity, kind) = (self.identity.clone(), self.backend.grant_kind());
        let backend: Arc<dyn CardBackend> = Arc::new(Nothing { identity, kind });
        let windows = self.windows.iter().map(|window| {
            let engine: Box<dyn Engine> = Box::new(Ended::of(&*window.engine)?);
            Ok(Window { index: window.index, engine, kept: Vec::new() })
        });
        let windows = windows.collect::<Result<Vec<_>, Error>>()?;
        Ok(Self {
            number,
            shell: Arc::new(Shell::without_vfpgas(number, Arc::clone(&backend))),
            card: Arc::clone(&backend),
            backend,
            identity: self.identity.clone(),
            address: self.address,
            gids: Vec::new(),
            vlans: Vec::new(),
            firmware: self.firmware.clone(),
            windows,
            arena: std::mem::replace(&mut self.arena, Arena::new(&[])),
            interrupts: None,
            manifest: self.manifest.clone(),
            said: None,
            options: self.options.clone(),
        })
    }
}

/// The way to nothing.
struct Nothing {
    identity: Identity,
    kind: GrantKind,
}

impl CardBackend for Nothing {
    fn read32(&self, _: Bar, _: u64) -> u32 {
        u32::MAX
    }

    fn write32(&self, _: Bar, _: u64, _: u32) {}

    fn read64(&self, _: Bar, _: u64) -> u64 {
        u64::MAX
    }

    fn write64(&self, _: Bar, _: u64, _: u64) {}

    fn write_wide(&self, _: u64, _: [u64; 4]) {}

    fn read_config(&self, _: u16) -> u16 {
        u16::MAX
    }

    fn write_config(&self, _: u16, _: u16) {}

    fn vector(&self, _: u16) -> Option<BorrowedFd<'_>> {
        None
    }

    fn dma_map(&self, _: u64, _: u64, _: DmaMemory) -> Result<(), Error> {
        Err(Error::Backend(GONE.into()))
    }

    /// Nothing: mappings there ended when the card was brought up anew.
    fn dma_unmap(&self, _: u64, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn iova_ranges(&self) -> Result<Vec<(u64, u64)>, Error> {
        Ok(Vec::new())
    }

    fn grant_kind(&self) -> GrantKind {
        self.kind
    }

    fn grant_page(&self, _: u8, _: u8) -> Result<DoorbellGrant, Error> {
        Err(Error::Backend(GONE.into()))
    }

    fn revoke_page(&self, _: u8, _: u8) {}

    fn reset(&self) -> Result<(), Error> {
        Err(Error::Backend(GONE.into()))
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn port_counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// An engine that a reset has ended.
struct Ended {
    name: String,
    why: String,
    limits: EngineLimits,
    /// Never readable.
    news: EventFd,
}

impl Ended {
    fn of(engine: &dyn Engine) -> Result<Self, Error> {
        let why = engine.death().unwrap_or("the card was reset").to_owned();
        let (name, limits) = (engine.name().to_owned(), *engine.limits());
        Ok(Self { name, why, limits, news: EventFd::new()? })
    }

    fn dead<T>(&self) -> Result<T, Error> {
        Err(Error::Dead { engine: self.name.clone(), why: self.why.clone() })
    }
}

impl Engine for Ended {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    fn death(&self) -> Option<&str> {
        Some(&self.why)
    }

    fn create_cq(&mut self, _: &CreateCq) -> Result<u32, Error> {
        self.dead()
    }

    fn resize_cq(&mut self, _: &ResizeCq) -> Result<u32, Error> {
        self.dead()
    }

    fn moderate_cq(&mut self, _: &ModerateCq) -> Result<(), Error> {
        self.dead()
    }

    fn destroy_cq(&mut self, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn create_rq(&mut self, _: &CreateRq) -> Result<u32, Error> {
        self.dead()
    }

    fn modify_rq(&mut self, _: u32, _: u32) -> Result<(), Error> {
        self.dead()
    }

    fn destroy_rq(&mut self, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn create_qp(&mut self, _: &CreateQp) -> Result<(u32, u8), Error> {
        self.dead()
    }

    fn modify_qp(&mut self, _: u32, _: &Attributes) -> Result<u8, Error> {
        self.dead()
    }

    fn query_qp(&mut self, _: u32) -> Result<Attributes, Error> {
        self.dead()
    }

    fn destroy_qp(&mut self, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn create_key(&mut self, _: &CreateKey) -> Result<u32, Error> {
        self.dead()
    }

    fn modify_key(&mut self, _: &ModifyKey) -> Result<(), Error> {
        self.dead()
    }

    fn destroy_key(&mut self, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn alloc_dm(&mut self, _: &AllocDm) -> Result<u32, Error> {
        self.dead()
    }

    fn free_dm(&mut self, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn copy_dm(&mut self, _: &CopyDm) -> Result<(), Error> {
        self.dead()
    }

    fn create_ah(&mut self, _: &CreateAh) -> Result<u32, Error> {
        self.dead()
    }

    fn query_ah(&mut self, _: u32) -> Result<bool, Error> {
        self.dead()
    }

    fn destroy_ah(&mut self, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn attach_multicast(&mut self, _: &Membership) -> Result<(), Error> {
        self.dead()
    }

    fn detach_multicast(&mut self, _: &Membership) -> Result<(), Error> {
        Ok(())
    }

    fn set_gid(&mut self, _: u8, _: Option<[u8; 16]>, _: u16) -> Result<(), Error> {
        self.dead()
    }

    fn set_link(&mut self, _: bool) -> Result<(), Error> {
        self.dead()
    }

    fn query_port(&mut self) -> Result<PortAttributes, Error> {
        self.dead()
    }

    fn query_clock(&mut self) -> Result<u64, Error> {
        self.dead()
    }

    fn query_counters(&mut self) -> Result<Vec<u64>, Error> {
        self.dead()
    }

    fn own_counters(&mut self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn grant(&mut self, _: u8, _: ClientRings) -> Result<DoorbellGrant, Error> {
        self.dead()
    }

    fn revoke(&mut self, _: u8) {}

    fn open_gsi(&mut self) -> Result<Arc<Gsi>, Error> {
        self.dead()
    }

    fn close_gsi(&mut self) {}

    fn listen(&mut self, _: Hear) {}

    fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    fn service(&mut self) {}

    fn next_event(&mut self) -> Option<EngineEvent> {
        None
    }

    fn check(&mut self) {}

    fn abandon(&mut self, _: &str) {}

    fn await_reset(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Error> {
        self.dead()
    }
}
