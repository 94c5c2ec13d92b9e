//! XRC: messages to queues of several contexts through one target, which one of them has made and
//! another has opened.

use std::fs::{File, remove_file};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use nix::sys::wait::{WaitStatus, waitpid};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options, Side, completion, success};
use crate::ffi::{
    Channel, Completion, Context, Cq, Domain, Failed, Operation, Pd, Peer, Qp, Recv, Region, Send,
    Srq, in_child,
};

/// Members of the domain.
const MEMBERS: usize = 3;
/// Bytes of each that messages may reach.
const ROOM: usize = 72 << 10;
/// The value of a byte that no message has reached.
const UNTOUCHED: u8 = 0xa5;
/// Sizes of messages.
const SIZES: [usize; 12] = [0, 1, 7, 64, 255, 256, 257, 1024, 4095, 4096, 4097, 65_537];
/// The offset of a message to another process.
const ELSEWHERE: usize = 5000;
/// Path MTUs.
const MTUS: [v::ibv_mtu; 3] = [v::IBV_MTU_256, v::IBV_MTU_1024, v::IBV_MTU_4096];

/// A context with a queue of the domain.
struct Member {
    srq: Rc<Srq>,
    number: u32,
    memory: Rc<Region>,
    cq: Rc<Cq>,
    domain: Rc<Domain>,
    pd: Rc<Pd>,
}

struct Scene {
    link: ConnectedSides,
    members: Vec<Member>,
    /// The file that names the domain.
    file: File,
    source: Rc<Region>,
    mtu: v::ibv_mtu,
    psn: u32,
}

/// A sender, and the target.
type Pair = (Qp, Qp);

/// Runs all of it; answers how many messages arrived. On a bad cable a refusal may be lost: a target in
/// the error state does not say it again.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn all(options: &Options, bad_cable: bool) -> Result<usize> {
    let mut count = 0;
    for mtu in MTUS {
        let mut scene = Scene::new(options, mtu)?;
        count += scene.exchange().context("messages")?;
        count += scene.heirs().context("a target whose maker is gone")?;
        count += scene.elsewhere().context("a member in another process")?;
        scene.refusals(bad_cable).context("refusals")?;
    }
    Ok(count)
}

impl Member {
    fn new(options: &Options, link: &ConnectedSides, file: &File) -> Result<Self> {
        let context = Context::open(link.library, &options.devices[1])?;
        let pd = Pd::new(&context)?;
        let domain = Domain::open(&context, Some(file))?;
        let channel = options.events.then(|| Channel::new(&context)).transpose()?;
        let cq = Cq::new(&context, 16, channel.as_ref())?;
        let srq = Srq::in_domain(&pd, (&domain, &cq), 8)?;
        let number = srq.number()?;
        let memory = Region::new(&pd, ROOM, ACCESS, false)?;
        memory.write(0, &[UNTOUCHED; ROOM]);
        Ok(Self { srq, number, memory, cq, domain, pd })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; ROOM];
        self.memory.read(0, &mut bytes);
        bytes
    }

    fn post(&self, wr_id: usize) -> Result<(), Failed> {
        let pieces = vec![self.memory.piece(0, ROOM)];
        self.srq.post(&Recv { wr_id: wr_id as u64, pieces })
    }
}

impl Scene {
    fn new(options: &Options, mtu: v::ibv_mtu) -> Result<Self> {
        let link = ConnectedSides::new(options, mtu, 4096)?;
        // The name is gone at once: the contexts share the file.
        let path = std::env::temp_dir().join(format!("verbs-data-xrc-{}", std::process::id()));
        let file =
            File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        remove_file(&path)?;
        let members = (0..MEMBERS).map(|_| Member::new(options, &link, &file));
        let members = members.collect::<Result<Vec<_>>>()?;
        let source = Region::new(&link.left.pd, ROOM, ACCESS, false)?;
        Ok(Self { link, members, file, source, mtu, psn: 0xff_fff0 })
    }

    /// A pair whose target this member makes.
    fn pair(&mut self, maker: usize) -> Result<Pair> {
        let Side { pd, send_cq, .. } = &self.link.left;
        let capabilities = v::ibv_qp_cap {
            max_send_wr: 8,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline_data: 0,
        };
        let initiator = Qp::initiator(pd, send_cq, capabilities)?;
        let Member { pd, domain, .. } = &self.members[maker];
        let target = Qp::target(pd, domain)?;
        let psn = self.psn;
        self.psn = (psn + 100_000) & 0xff_ffff;
        let gid_index = self.link.options().gid_index;
        let peer = |context: &Context, qp: &Qp| -> Result<Peer> {
            let (gid, qpn, mtu) = (context.gid(gid_index)?, qp.number(), self.mtu);
            Ok(Peer { qpn, gid, gid_index, send_psn: psn, receive_psn: psn, mtu })
        };
        let ends = [
            (&initiator, peer(&self.link.right.context, &target)?),
            (&target, peer(&self.link.left.context, &initiator)?),
        ];
        for (qp, far) in ends {
            qp.init(ACCESS)?;
            qp.receive_from(&far)?;
            qp.send_to(&far, self.link.options().patience)?;
        }
        Ok((initiator, target))
    }

    fn send(&self, (initiator, srqn): (&Qp, u32), wanted: &Send) -> Result<Completion> {
        initiator.post_to(srqn, wanted)?;
        completion(&self.link.left.send_cq)
    }

    /// Every operation with every size to every member.
    fn exchange(&mut self) -> Result<usize> {
        let pair = self.pair(0)?;
        let mut count = 0;
        for operation in Operation::ALL {
            for size in SIZES {
                for member in 0..MEMBERS {
                    self.message(&pair, member, (operation, size, count)).with_context(|| {
                        format!("{operation:?} of {size} bytes to member {member}")
                    })?;
                    count += 1;
                }
            }
        }
        let refused = self.members[0].domain.refuses_to_go();
        ensure!(refused.errno == libc::EBUSY, "{refused}");
        Ok(count)
    }

    /// One message; the memory of all members is compared.
    fn message(
        &self,
        (initiator, target): &Pair,
        to: usize,
        (operation, size, number): (Operation, usize, usize),
    ) -> Result<()> {
        let member = &self.members[to];
        let bytes = bytes(size, number);
        let (at, reads) = (number % 4096, operation == Operation::Read);
        let mut wanted: Vec<_> = self.members.iter().map(Member::bytes).collect();
        // Receives begin at the start of the member's memory.
        let sends = matches!(operation, Operation::Send | Operation::SendImmediate);
        let place = if sends { 0 } else { at };
        if reads {
            member.memory.write(place, &bytes);
            self.source.write(0, &vec![UNTOUCHED; size + 1]);
        } else {
            self.source.write(0, &bytes);
        }
        wanted[to][place..place + size].copy_from_slice(&bytes);
        if operation.receives() {
            member.post(number)?;
        }
        let request = Send {
            wr_id: number as u64,
            operation,
            pieces: vec![self.source.piece(0, size)],
            remote: (member.memory.address() + at as u64, member.memory.rkey()),
            immediate: number as u32,
            flags: v::IBV_SEND_SIGNALED,
        };
        initiator.post_to(member.number, &request)?;
        let done = success(self.link.library, &self.link.left.send_cq)?;
        ensure!((done.wr_id, done.qp_num) == (number as u64, initiator.number()), "{done:?}");
        if operation.receives() {
            let come = success(self.link.library, &member.cq)?;
            let immediate = (operation != Operation::Send).then_some(number as u32);
            let told = (come.wr_id, come.qp_num, come.byte_len, come.immediate);
            let said = (number as u64, target.number(), size as u32, immediate);
            ensure!(told == said, "{come:?}, not {said:?}");
        }
        for (at, (member, wanted)) in self.members.iter().zip(&wanted).enumerate() {
            self.link.nothing_more(&member.cq)?;
            ensure!(member.bytes() == *wanted, "the memory of member {at}");
        }
        if reads {
            let mut found = vec![0; size + 1];
            self.source.read(0, &mut found);
            ensure!(found[..size] == bytes && found[size] == UNTOUCHED, "the bytes that were read");
        }
        Ok(())
    }

    /// A target that another member has opened goes on without its maker.
    fn heirs(&mut self) -> Result<usize> {
        let (initiator, made) = self.pair(1)?;
        let Member { pd, domain, .. } = &self.members[2];
        let opened = Qp::opened(pd, domain, made.number())?;
        ensure!(opened.number() == made.number(), "opened as {}", opened.number());
        drop(made);
        let state = opened.query()?.qp_state;
        ensure!(state == v::IBV_QPS_RTS, "the target's state is {state}");
        let pair = (initiator, opened);
        for member in 0..MEMBERS {
            self.message(&pair, member, (Operation::SendImmediate, 5000, 77 + member))?;
        }
        Ok(MEMBERS)
    }

    /// Another process opens the target, has a queue of its own in the domain, and receives there, also when
    /// the target's maker has left it.
    fn elsewhere(&mut self) -> Result<usize> {
        let (initiator, made) = self.pair(0)?;
        let (mut ours, theirs) = UnixStream::pair()?;
        let target = made.number();
        let child = in_child(|| match self.receive_elsewhere(target, theirs) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("in the other process: {error:?}");
                1
            }
        })?;
        let mut made = Some(made);
        for number in 0..2 {
            let mut srqn = [0; 4];
            ours.read_exact(&mut srqn).context("it does not wait for a message")?;
            if number == 1 {
                made = None;
            }
            self.source.write(0, &bytes(ELSEWHERE, number));
            let request = Send {
                wr_id: number as u64,
                operation: Operation::Send,
                pieces: vec![self.source.piece(0, ELSEWHERE)],
                remote: (0, 0),
                immediate: 0,
                flags: v::IBV_SEND_SIGNALED,
            };
            initiator.post_to(u32::from_ne_bytes(srqn), &request)?;
            success(self.link.library, &self.link.left.send_cq)?;
            ours.write_all(&[0]).context("it does not wait for the acknowledgement")?;
        }
        drop(made);
        let ended = waitpid(child, None)?;
        ensure!(ended == WaitStatus::Exited(child, 0), "the other process: {ended:?}");
        Ok(2)
    }

    fn receive_elsewhere(&self, target: u32, mut parent: UnixStream) -> Result<()> {
        let member = Member::new(self.link.options(), &self.link, &self.file)?;
        let opened = Qp::opened(&member.pd, &member.domain, target)?;
        for number in 0..2 {
            member.post(number)?;
            parent.write_all(&member.number.to_ne_bytes())?;
            let come = success(self.link.library, &member.cq)?;
            let told = (come.wr_id, come.qp_num, come.byte_len);
            ensure!(told == (number as u64, target, ELSEWHERE as u32), "{come:?}");
            ensure!(member.bytes()[..ELSEWHERE] == bytes(ELSEWHERE, number), "other bytes came");
            // The target goes with its last opener, and then no side repeats a lost acknowledgement.
            parent.read_exact(&mut [0])?;
        }
        let state = opened.query()?.qp_state;
        ensure!(state == v::IBV_QPS_RTS, "the target's state is {state}");
        Ok(())
    }

    /// Tries requests that are answered with an error, and end the pair.
    fn refusals(&mut self, bad_cable: bool) -> Result<()> {
        let (address, rkey) = {
            let memory = &self.members[0].memory;
            (memory.address(), memory.rkey())
        };
        let own = Srq::new(&self.members[0].pd, 8, 1)?;
        let elsewhere = Domain::open(self.members[0].pd.context(), None)?;
        let Member { pd, cq, .. } = &self.members[0];
        let other = Srq::in_domain(pd, (&elsewhere, cq), 8)?;
        let foreign = Qp::opened(pd, &elsewhere, 1).err().context("a target of nobody's")?;
        ensure!(foreign.errno == libc::EINVAL, "{foreign}");
        let cases = [
            // Another member's key.
            (Operation::Write, self.members[1].number, v::IBV_WC_REM_ACCESS_ERR),
            (Operation::Read, self.members[1].number, v::IBV_WC_REM_ACCESS_ERR),
            // A queue of another domain, none of a domain, none.
            (Operation::Write, other.number()?, v::IBV_WC_REM_INV_RD_REQ_ERR),
            (Operation::Send, other.number()?, v::IBV_WC_REM_INV_RD_REQ_ERR),
            (Operation::Read, other.number()?, v::IBV_WC_REM_INV_RD_REQ_ERR),
            (Operation::Send, own.number()?, v::IBV_WC_REM_INV_RD_REQ_ERR),
            (Operation::Send, self.members[1].number ^ 0x5555, v::IBV_WC_REM_INV_RD_REQ_ERR),
        ];
        let untouched: Vec<_> = self.members.iter().map(Member::bytes).collect();
        for (operation, srqn, status) in cases {
            let pair = self.pair(0)?;
            let pieces = vec![self.source.piece(0, 100)];
            let flags = v::IBV_SEND_SIGNALED;
            let remote = (address, rkey);
            let request = Send { wr_id: 1, operation, pieces, remote, immediate: 0, flags };
            let done = self.send((&pair.0, srqn), &request)?;
            let unheard = bad_cable && done.status == v::IBV_WC_RETRY_EXC_ERR;
            ensure!(done.status == status || unheard, "{operation:?} to {srqn:#x}: {done:?}");
            let state = pair.1.query()?.qp_state;
            ensure!(state == v::IBV_QPS_ERR, "the target's state is {state}");
        }
        ensure!(self.members.iter().map(Member::bytes).eq(untouched), "memory was written");
        Ok(())
    }
}

/// Bytes that tell a message from others.
fn bytes(size: usize, number: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 + at / 251 + number * 31) as u8).collect()
}
