//! A client that speaks to balboad by hand, so that it can stop between any two steps.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use hostmem::fdpass::{Wait, receive, send};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use shim_abi::{Hello, MAX_MESSAGE, Reply, Request, Response, Role, SOCKET_NAME};

use super::say;

/// A client of balboad that sends the messages that a test wants, one by one.
pub(crate) struct RawClient(OwnedFd);

impl RawClient {
    /// Connects to the balboad of a state directory as a verbs program does.
    pub(crate) fn connect(directory: &Path) -> Result<Self> {
        Self::connect_as(directory, Role::Provider)
    }

    /// The same as a verbs program or a tool.
    pub(crate) fn connect_as(directory: &Path, role: Role) -> Result<Self> {
        let client = Self(dial(directory)?);
        let hello = Hello { build: "by hand".into(), role };
        let hello = shim_abi::hello_frame(&hello);
        let (answer, _) = client.exchange(&hello)?;
        let reply: Reply = shim_abi::decode_hello(&answer)?;
        match reply {
            Ok(_) => Ok(client),
            Err(refusal) => bail!("{}", refusal.reason),
        }
    }

    fn exchange(&self, message: &[u8]) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        send(self.0.as_fd(), message, &[], Wait::AsSocket)?;
        self.hear()
    }

    fn hear(&self) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut room = vec![0; MAX_MESSAGE];
        let received = receive(self.0.as_fd(), &mut room, Wait::AsSocket)?;
        room.truncate(received.bytes);
        Ok((room, received.fds))
    }

    /// Opens a card and makes a protection domain, whose number is the answer.
    pub(crate) fn open(&self, card: u32) -> Result<u32> {
        let (response, _fds) = self.ask(&Request::OpenContext { card })?;
        let Response::Context(info) = response else { bail!("{response:?}") };
        let (response, _) = self.ask(&Request::AllocPd { context: info.context })?;
        let Response::Pd { pdn } = response else { bail!("{response:?}") };
        Ok(pdn)
    }

    /// Takes the first step of a registration; the region's number is the answer.
    pub(crate) fn reserve(&self, pdn: u32, memory: (u64, u64), access: u32) -> Result<u32> {
        let (address, length) = memory;
        let request = Request::ReserveMr { pdn, address, length, hca_va: address, access };
        let (response, _) = self.ask(&request)?;
        let Response::Reserved { mr, .. } = response else { bail!("{response:?}") };
        Ok(mr)
    }

    /// Sends a request whose answer is read by [`Self::answer`].
    pub(crate) fn send(&self, request: &Request) -> Result<()> {
        Ok(send(self.0.as_fd(), &shim_abi::encode(request), &[], Wait::AsSocket)?)
    }

    /// The answer to the last request, if not the one that belongs to it.
    pub(crate) fn answer(&self) -> Result<Reply> {
        Ok(shim_abi::decode::<Reply>(&self.hear()?.0)?)
    }

    /// Makes a request.
    pub(crate) fn ask(&self, request: &Request) -> Result<(Response, Vec<OwnedFd>)> {
        let (answer, fds) = self.exchange(&shim_abi::encode(request))?;
        match shim_abi::decode::<Reply>(&answer)? {
            Ok(response) => Ok((response, fds)),
            Err(refusal) => bail!("{request:?}: {}", refusal.reason),
        }
    }
}

/// Connects to the balboad of a state directory, and says nothing yet.
///
/// # Errors
/// When there is none.
pub(super) fn dial(directory: &Path) -> Result<OwnedFd> {
    let kind = SockType::SeqPacket;
    let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
    let path = directory.join(SOCKET_NAME);
    connect(fd.as_raw_fd(), &UnixAddr::new(&path)?).context("no balboad")?;
    Ok(fd)
}

/// Takes the first step of a registration, says `reserved`, and never takes the second.
///
/// # Errors
/// When balboad refuses a step.
pub fn reserve(directory: &Path) -> Result<()> {
    let client = RawClient::connect(directory)?;
    let pdn = client.open(0)?;
    let memory = vec![0u8; 1 << 20];
    for _ in 0..8 {
        client.reserve(pdn, (memory.as_ptr() as u64, memory.len() as u64), 1)?;
    }
    say("reserved");
    std::thread::sleep(super::LIMIT * 100);
    drop(memory);
    Ok(())
}
