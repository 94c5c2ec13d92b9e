//! Bugs that are planted in a copy of the RTL, each of which the simulation has to find.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cargo::root;

/// A bug: texts of one file of `gateware/rtl/`, each there once, and those in their places.
pub struct Plant {
    /// By this the command line names it.
    pub name: &'static str,
    /// What is wrong then.
    pub says: &'static str,
    file: &'static str,
    edits: &'static [(&'static str, &'static str)],
}

impl Plant {
    /// Whether it is in the adaptor to the shell's records, which is simulated without the engine.
    pub fn is_of_adaptor(&self) -> bool {
        self.file.starts_with("balboa_coyote")
    }

    /// Writes the changed file into a directory, and gives the sources with it.
    ///
    /// # Errors
    /// When a text is not there once: the RTL has changed, and so has the plant to.
    pub fn apply(&self, sources: &[PathBuf], directory: &Path) -> Result<Vec<PathBuf>> {
        let mut all = sources.to_vec();
        let name = format!("{}.sv", self.file);
        let place = all.iter_mut().find(|path| path.ends_with(&name));
        let place = place.with_context(|| format!("there is no {name} in gateware/rtl"))?;
        fs::create_dir_all(directory)?;
        let planted = directory.join(&name);
        fs::write(&planted, self.planted()?)?;
        *place = planted;
        Ok(all)
    }

    fn planted(&self) -> Result<String> {
        let path = root().join(format!("gateware/rtl/{}.sv", self.file));
        let mut text = fs::read_to_string(&path)?;
        for (before, after) in self.edits {
            let count = text.matches(before).count();
            ensure!(
                count == 1,
                "the plant {} wants `{before}` once in {}, where it is {count} times",
                self.name,
                path.display()
            );
            text = text.replacen(before, after, 1);
        }
        Ok(text)
    }
}

/// All of them.
pub const PLANTS: &[Plant] = &[
    Plant {
        name: "aligner-off-by-one",
        says: "the aligner puts a piece one byte behind the end of the one before",
        file: "balboa_pack",
        edits: &[(
            "<< {rest_count[5:0], 3'd0}",
            "<< {rest_count[5:0] + 6'(rest_count[5:0] != '0), 3'd0}",
        )],
    },
    Plant {
        name: "aligner-keeps-garbage",
        says: "the aligner does not clear what stands behind the bytes of a piece's last beat",
        file: "balboa_pack",
        edits: &[("7'(i) < in_bytes ? in_data[8*i+:8] : 8'd0", "in_data[8*i+:8]")],
    },
    Plant {
        name: "cutter-off-by-one",
        says: "a piece of a READ's bytes leaves its last byte before those of the next piece",
        file: "balboa_unpack",
        edits: &[(
            "rest       = gives ? held >> {wanted, 3'd0} : held;",
            "rest       = gives ? held >> {wanted - 7'(wanted != 7'd64), 3'd0} : held;",
        )],
    },
    Plant {
        name: "read-right",
        says: "a peer READs by the right to WRITE",
        file: "balboa_remote",
        edits: &[(
            "k.access == PORT_ACCESS_READ ? KEY_ACCESS_REMOTE_READ : KEY_ACCESS_REMOTE_WRITE",
            "KEY_ACCESS_REMOTE_WRITE",
        )],
    },
    Plant {
        name: "write-right",
        says: "a peer WRITEs by the right to READ",
        file: "balboa_remote",
        edits: &[(
            "k.access == PORT_ACCESS_READ ? KEY_ACCESS_REMOTE_READ : KEY_ACCESS_REMOTE_WRITE",
            "KEY_ACCESS_REMOTE_READ",
        )],
    },
    Plant {
        name: "local-right",
        says: "a READ is sent whose own memory may not be written",
        file: "balboa_sender",
        edits: &[("right: is_read ? KEY_ACCESS_LOCAL_WRITE : '0", "right: '0")],
    },
    Plant {
        name: "read-depth",
        says: "a READ is sent by a queue pair that may have none under way",
        file: "balboa_sender",
        edits: &[("has_failed <= is_read && !qp.can_read;", "has_failed <= 1'b0;")],
    },
    Plant {
        name: "receive-stride",
        says: "entries of a receive queue are read as if each had one block",
        file: "balboa_receiver",
        edits: &[("stride        = 5'd1 << rq.log2_stride;", "stride        = 5'd1;")],
    },
    Plant {
        name: "receive-elements",
        says: "a receive may have more elements than its entry",
        file: "balboa_receiver",
        edits: &[(" && w_bytes <= 12'd64 << rq.log2_stride;", ";")],
    },
    Plant {
        name: "receive-overrun",
        says: "receives are taken from a ring in which more are posted than it has",
        file: "balboa_receiver",
        edits: &[(
            "assign is_overrun = posted > entries;",
            "assign is_overrun = posted > entries << 1;",
        )],
    },
    Plant {
        name: "receive-capacity",
        says: "the transport is told of a byte more than a receive can hold",
        file: "balboa_receiver",
        edits: &[("'1 : w_capacity[31:0];", "'1 : w_capacity[31:0] + 32'd1;")],
    },
    Plant {
        name: "receive-stale-record",
        says: "the record of a receive queue is not read again once all that it told of was claimed",
        file: "balboa_receiver",
        edits: &[(
            "next = CLAIM_READ;\n        if (has_slot)",
            "next = posted == '0 && at_consumer != '0 ? CLAIMED : CLAIM_READ;\n        if (has_slot)",
        )],
    },
    Plant {
        name: "receive-kept",
        says: "receives that were read ahead stay behind RESET of their queue pair",
        file: "balboa_receiver",
        edits: &[(
            ".forgets         (starts_rq || forgets_slot),\n      .forgotten       (starts_rq ? started_rq : rq_place),",
            ".forgets         (forgets_slot),\n      .forgotten       (rq_place),",
        )],
    },
    Plant {
        name: "receive-fault",
        says: "an engine goes on whose receives are out of reach",
        file: "balboa_engine",
        edits: &[("has_entries_fault || has_receives_fault ||", "has_entries_fault ||")],
    },
    Plant {
        name: "receive-stays",
        says: "a receive that is complete stays claimed",
        file: "balboa_receiver",
        edits: &[("if (completes) n_next.oldest = at_oldest + 32'd1;", "")],
    },
    Plant {
        name: "receive-right",
        says: "bytes are placed that the key of a receive's memory does not allow",
        file: "balboa_remote",
        edits: &[("key_ask.right  = KEY_ACCESS_LOCAL_WRITE;", "key_ask.right  = '0;")],
    },
    Plant {
        name: "receive-flush",
        says: "what is posted to the receive queue of a queue pair that fails is not flushed",
        file: "balboa_sender",
        edits: &[("block_asks ? FLUSH_ENTRY : FLUSH_RECEIVE;", "block_asks ? FLUSH_ENTRY : IDLE;")],
    },
    Plant {
        name: "receive-late-flush",
        says: "a receive that is posted to a queue pair in ERR is not flushed",
        file: "balboa_queues",
        edits: &[(
            "is_flushing = qp_write.qp.state == QP_STATE_ERR &&",
            "is_flushing = qp_write.qp.state == QP_STATE_RESET &&",
        )],
    },
    Plant {
        name: "immediate-lost",
        says: "the transport is told of no immediate data",
        file: "balboa_sender",
        edits: &[("submit.immediate      <= w_header.immediate;", "")],
    },
    Plant {
        name: "solicited-lost",
        says: "the completion of a receive does not say that its message was solicited",
        file: "balboa_sender",
        edits: &[("if (r.solicited) receive_ask.cqe.flags |= CQE_FLAGS_SOLICITED;", "")],
    },
    Plant {
        name: "tail-enable",
        says: "the last beat of what a peer writes enables one byte too many",
        file: "balboa_remote",
        edits: &[("keep_of(28'(piece_beat.bytes))", "keep_of(28'(piece_beat.bytes) + 28'd1)")],
    },
    Plant {
        name: "phase-stays",
        says: "the phase of completions is not flipped with the lap",
        file: "balboa_completions",
        edits: &[("8'(expected_phase(q.producer, cq.log2))", "8'd1")],
    },
    Plant {
        name: "generation-lost",
        says: "a completion does not say which queue pair of its number it is of",
        file: "balboa_sender",
        edits: &[("entry.generation = of.generation;", "entry.generation = '0;")],
    },
    Plant {
        name: "key-bounds",
        says: "the end of a region is not checked",
        file: "balboa_keys",
        edits: &[(
            "asked.va >= kept.va && end_of_range <= 65'(kept.length)",
            "asked.va >= kept.va",
        )],
    },
    Plant {
        name: "parity-ignored",
        says: "a key that has flipped is used",
        file: "balboa_table",
        edits: &[("assign is_flipped = flips != '0;", "assign is_flipped = 1'b0;")],
    },
    Plant {
        name: "number-again",
        says: "a place of a table gives the same number again",
        file: "balboa_places",
        edits: &[("(uses + 1'b1)", "(uses)")],
    },
    Plant {
        name: "submit-length",
        says: "the transport is told of a byte less than the message has, where that is more than one",
        file: "balboa_sender",
        edits: &[(
            "submit.length         <= w_length[31:0];",
            "submit.length         <= w_length > 36'd1 ? w_length[31:0] - 32'd1 : w_length[31:0];",
        )],
    },
    Plant {
        name: "submit-address",
        says: "the transport is told of another address at the peer",
        file: "balboa_sender",
        edits: &[(
            "submit.remote_address <= w_header.remote_address;",
            "submit.remote_address <= {w_header.remote_address[63:1], 1'b0};",
        )],
    },
    Plant {
        name: "ring-wrap",
        says: "the index of a ring's entry is not taken modulo its entries",
        file: "balboa_engine_pkg",
        edits: &[("(index & ((32'd1 << log2) - 32'd1))", "(index & ((32'd2 << log2) - 32'd1))")],
    },
    Plant {
        name: "inline-wrap",
        says: "inline data that goes on at the start of the ring is read behind its end",
        file: "balboa_gather",
        edits: &[(
            "inline_to_end < 32'(left) ? inline_to_end[12:0] : left",
            "inline_to_end == '0 ? '0 : left",
        )],
    },
    Plant {
        name: "written-dropped",
        says: "the answer to a write of a register is given up where the driver's side is not ready",
        file: "balboa_axil",
        edits: &[("else if (bready) bvalid <= 1'b0;", "else bvalid <= 1'b0;")],
    },
    Plant {
        name: "read-dropped",
        says: "the value of a register is given up where the driver's side is not ready",
        file: "balboa_axil",
        edits: &[("else if (rready) rvalid <= 1'b0;", "else rvalid <= 1'b0;")],
    },
    Plant {
        name: "valid-dropped",
        says: "a request to read is given up where the shell is not ready",
        file: "balboa_gather",
        edits: &[("ASK: if (read_ready) state <= length", "ASK: state <= length")],
    },
    Plant {
        name: "fetch-fault",
        says: "a fault in an earlier piece of a question for bytes is forgotten",
        file: "balboa_gather",
        edits: &[(
            "ends_piece && piece.is_last && (fails || has_failed);",
            "ends_piece && piece.is_last && fails;",
        )],
    },
    Plant {
        name: "place-fault",
        says: "a fault in an earlier piece of a place is forgotten",
        file: "balboa_remote",
        edits: &[(
            "oldest.is_refused || has_failed || is_out_of_reach",
            "oldest.is_refused || is_out_of_reach",
        )],
    },
    Plant {
        name: "entry-cut",
        says: "an entry that goes on behind the blocks that were read is taken as it is",
        file: "balboa_sender",
        edits: &[
            ("&& 6'(w_read) == slot_blocks;", "&& 1'b0;"),
            (
                "w_is_sound && 8'(w_read) < w_header.blocks) begin",
                "w_is_sound && 8'(w_read) < w_header.blocks && 6'(w_read) != slot_blocks) begin",
            ),
        ],
    },
    Plant {
        name: "entries-wrap",
        says: "entries behind the end of the ring are read from behind it",
        file: "balboa_sender",
        edits: &[(
            "ask_address = 48'(entries_of(qp.ring));",
            "ask_address = 48'(entries_of(qp.ring) + (64'(blocks) << 6));",
        )],
    },
    Plant {
        name: "entries-fault",
        says: "an engine goes on whose entries are out of reach",
        file: "balboa_entries",
        edits: &[(
            "else if (fault_valid) has_fault <= 1'b1;",
            "else if (fault_valid) has_fault <= 1'b0;",
        )],
    },
    Plant {
        name: "completion-fault",
        says: "an engine goes on whose completions are out of reach",
        file: "balboa_writes",
        edits: &[("owner.is_posted) has_fault <= 1'b1;", "owner.is_posted) has_fault <= 1'b0;")],
    },
    Plant {
        name: "patience-endless",
        says: "an engine waits for ever for an answer of host memory",
        file: "balboa_patience",
        edits: &[("&& waited == '1;", "&& 1'b0;")],
    },
    Plant {
        name: "patience-forgives",
        says: "an engine goes on where host memory has not answered",
        file: "balboa_engine",
        edits: &[("has_write_fault || has_expired || has_flip;", "has_write_fault || has_flip;")],
    },
    Plant {
        name: "reset-places",
        says: "bytes of a peer are placed for a queue pair in RESET",
        file: "balboa_remote",
        edits: &[("is_remote && found.state != QP_STATE_RESET)", "is_remote)")],
    },
    Plant {
        name: "reset-fetches",
        says: "bytes for a peer are fetched for a queue pair in RESET",
        file: "balboa_gather",
        edits: &[("is_remote && found.state != QP_STATE_RESET)", "is_remote)")],
    },
    Plant {
        name: "end-early",
        says: "a queue pair ends while payload is under way",
        file: "balboa_engine",
        edits: &[(".may_take(is_idle && is_payload_quiet),", ".may_take(is_idle),")],
    },
    Plant {
        name: "queue-overflows",
        says: "a queue takes more than it has room for",
        file: "balboa_fifo",
        edits: &[("assign in_ready  = !level[INDEX_BITS];", "assign in_ready  = 1'b1;")],
    },
    Plant {
        name: "ignored-uncounted",
        says: "doorbells of no queue are not counted",
        file: "balboa_window",
        edits: &[("ignored.doorbells + 32'(rings_nobody);", "ignored.doorbells;")],
    },
    Plant {
        name: "payload-miscounted",
        says: "the last beat of payload that is read counts as a whole one",
        file: "balboa_memory",
        edits: &[("recv.last && read_tail != '0 ?", "1'b0 ?")],
    },
    Plant {
        name: "interrupt-early",
        says: "the interrupt does not wait for the end of the event's write",
        file: "balboa_events",
        edits: &[(
            "block_ask.is_write       = 1'b1;",
            "block_ask.is_write       = 1'b1;\n    block_ask.is_posted      = 1'b1;",
        )],
    },
    Plant {
        name: "interrupt-lost",
        says: "no interrupt is raised for an event",
        file: "balboa_events",
        edits: &[("if (raises || state == BEGIN) raised", "if (raises) raised")],
    },
    Plant {
        name: "event-before-completion",
        says: "the event of a completion is raised before the completion is written",
        file: "balboa_completions",
        edits: &[
            ("    RELEASE\n  } state_t;", "    RELEASE,\n    EARLY\n  } state_t;"),
            (
                "          next        = job.keeps ? DONE : WRITE;\n        end\n",
                "          event_asks  = wakes && !holds && !job.keeps;\n          next        = job.keeps ? DONE : event_asks ? EARLY : WRITE;\n        end\n",
            ),
            (
                "          event_asks = wakes && !holds;\n          waits      = wakes && holds;",
                "          event_asks = 1'b0;\n          waits      = wakes && holds;",
            ),
            ("      TELL: begin", "      EARLY: if (event_ended) next = WRITE;\n      TELL: begin"),
        ],
    },
    Plant {
        name: "completes-twice",
        says: "messages complete of which the transport has not said that they ended",
        file: "balboa_sender",
        edits: &[("else if (is_ending) r.count <= r.count - 32'd1;", "")],
    },
    Plant {
        name: "unsignaled-completes",
        says: "a message completes that asked for no completion",
        file: "balboa_sender",
        edits: &[
            ("(ends && oldest.is_signaled)", "ends"),
            ("oldest.is_signaled ? REPORT_COMPLETED : REPORT_ENDED", "REPORT_COMPLETED"),
        ],
    },
    Plant {
        name: "stale-record",
        says: "the doorbell record is not read again once all that it told of was sent",
        file: "balboa_sender",
        edits: &[(
            "!has_slot && (posted != '0 || is_rung);",
            "!has_slot && (posted != '0 || (is_rung && at_fetch == '0));",
        )],
    },
    Plant {
        name: "turn-lost",
        says: "a queue pair whose entry was sent is not looked at again",
        file: "balboa_sender",
        edits: &[("goes_on_with || state == FLUSH_TAKEN ||", "state == FLUSH_TAKEN ||")],
    },
    Plant {
        name: "full-for-ever",
        says: "a completion queue that was full counts as overrun, whatever its consumer has read",
        file: "balboa_completions",
        edits: &[(
            "assign is_still_full = q.promised - block[31:0] >= entries;",
            "assign is_still_full = 1'b1;",
        )],
    },
    Plant {
        name: "arming-stays",
        says: "a queue that fired stays armed",
        file: "balboa_completions",
        edits: &[("if (wakes) q_next.armed = DOORBELL_ARM_CODE_NEVER[1:0];", "")],
    },
    Plant {
        name: "flush-status",
        says: "entries behind one that failed complete with its status",
        file: "balboa_sender",
        edits: &[(
            "fails || flushes) cause <= CQE_STATUS_FLUSHED;",
            "fails) cause <= CQE_STATUS_FLUSHED;",
        )],
    },
    Plant {
        name: "shared-flush",
        says: "a queue pair that ends flushes what is posted to a shared receive queue",
        file: "balboa_receiver",
        edits: &[(
            "else if (job.takes_posted && !job.qp.is_rq_shared) next = FLUSH_POSTED;",
            "else if (job.takes_posted) next = FLUSH_POSTED;",
        )],
    },
    Plant {
        name: "shared-reset",
        says: "RESET of a queue pair empties the shared receive queue that it uses",
        file: "balboa_engine",
        edits: &[(
            "(starts_qp && !(makes_qp ? made_qp.is_rq_shared : qp.is_rq_shared))",
            "starts_qp",
        )],
    },
    Plant {
        name: "shared-given-up",
        says: "the receive that a queue pair took from a shared queue does not complete when it is destroyed",
        file: "balboa_execute",
        edits: &[(
            "is_shared_end = header.opcode == ADMIN_OPCODE_DESTROY_QP && qp.is_rq_shared;",
            "is_shared_end = 1'b0;",
        )],
    },
    Plant {
        name: "shared-reset-room",
        says: "room that comes behind RESET is taken back where a receive of a shared queue is to complete first",
        file: "balboa_engine",
        edits: &[("!command_ended && !gives_up &&", "!command_ended &&")],
    },
    Plant {
        name: "shared-claim-lost",
        says: "a claim that waits for receives of a shared queue is forgotten with the answer to the one before it",
        file: "balboa_claims",
        edits: &[("answers_last = answers && line.first == line.last;", "answers_last = answers;")],
    },
    Plant {
        name: "shared-last-untold",
        says: "the driver does not hear that a queue pair has come to its last receive",
        file: "balboa_sender",
        edits: &[("= reaches_last;", "= 1'b0;")],
    },
    Plant {
        name: "limit-early",
        says: "a receive queue is below its limit while as many entries are left",
        file: "balboa_receiver",
        edits: &[
            ("32'(limit) > posted;", "32'(limit) >= posted && limit != '0;"),
            ("32'(q.limit) > left;", "32'(q.limit) >= left;"),
        ],
    },
    Plant {
        name: "limit-stays",
        says: "a receive queue below its limit tells so with each entry that is taken",
        file: "balboa_receiver",
        edits: &[("else if (tells) q_next.limit = '0;", "")],
    },
    Plant {
        name: "room-unchecked",
        says: "a message is taken whose completion the queue has no room for",
        file: "balboa_receiver",
        edits: &[("is_sound && !has_lost ? PORT", "is_sound ? PORT")],
    },
    Plant {
        name: "room-unkept",
        says: "no room is kept for the completion of a receive that a message fills",
        file: "balboa_completions",
        edits: &[("          is_promised = 1'b1;", "          is_promised = !job.keeps;")],
    },
    Plant {
        name: "room-stays",
        says: "RESET of a queue pair leaves room kept for completions that will not come",
        file: "balboa_completions",
        edits: &[("q.promised - 32'(released_now);", "q.promised;")],
    },
    Plant {
        name: "move-small",
        says: "a completion queue moves to a ring that has fewer entries than wait to be consumed",
        file: "balboa_completions",
        edits: &[(
            "!block_failed && q.producer - block[31:0] <= moved_entries &&",
            "!block_failed &&",
        )],
    },
    Plant {
        name: "move-unarmed",
        says: "an arming is lost whose completion queue moves before its doorbell is heard",
        file: "balboa_completions",
        edits: &[(
            "((state == ARMED && block_ended) || moves) &&",
            "state == ARMED && block_ended &&",
        )],
    },
    Plant {
        name: "move-room",
        says: "a completion queue that moves keeps no room for completions that are to come",
        file: "balboa_completions",
        edits: &[("q_next.promised      = q.promised - q.producer;", "q_next.promised      = '0;")],
    },
    Plant {
        name: "drained-unasked",
        says: "the driver hears that a send queue drained though the command did not ask for it",
        file: "balboa_sender",
        edits: &[(
            "event_asks       = r.event_ != EVENT_QP_EVENT_SQ_DRAINED || tells_drained;",
            "event_asks       = 1'b1;",
        )],
    },
    Plant {
        name: "drained-sends",
        says: "a queue pair in SQD goes on to send",
        file: "balboa_sender",
        edits: &[(
            "assign sends = is_there && qp.state == QP_STATE_RTS &&",
            "assign sends = is_there && (qp.state == QP_STATE_RTS || qp.state == QP_STATE_SQD) &&",
        )],
    },
    Plant {
        name: "end-first",
        says: "a command that ends the sending of a queue pair goes before what was posted",
        file: "balboa_execute",
        edits: &[(
            "next      = pump_asks ? IN_LINE : LAST;",
            "pump_asks = 1'b0;\n        next      = LAST;",
        )],
    },
    Plant {
        name: "end-second",
        says: "a command that ends the sending of a queue pair waits for one turn of it",
        file: "balboa_execute",
        edits: &[(
            "next = has_more && !is_broken && turns_left != '0 ? IN_LINE : FIND_AGAIN;",
            "next = FIND_AGAIN;",
        )],
    },
    Plant {
        name: "ended-lost",
        says: "a report of ends is lost that is taken between the command to ERR and the flush",
        file: "balboa_sender",
        edits: &[("&& r.count != '0;", "&& r.count != '0 && qp.state != QP_STATE_ERR;")],
    },
    Plant {
        name: "ended-all",
        says: "a report of ends that is taken between the command to ERR and the flush ends all messages",
        file: "balboa_sender",
        edits: &[("&& r.count != '0;", "&& (r.count != '0 || qp.state == QP_STATE_ERR);")],
    },
    Plant {
        name: "ended-unasked",
        says: "the flush of a queue pair that a command took to ERR ends its oldest message well",
        file: "balboa_sender",
        edits: &[(
            "if (state == PUMP || fails || flushes) cause <= CQE_STATUS_FLUSHED;",
            "if (state == PUMP) cause <= CQE_STATUS_SUCCESS;\n    if (fails || flushes) cause <= CQE_STATUS_FLUSHED;",
        )],
    },
    Plant {
        name: "commit-late",
        says: "receives that are claimed are flushed one a turn: a late report completes that of another message",
        file: "balboa_sender",
        edits: &[
            (
                "next = has_completed ? FLUSH_CLAIMED : FLUSH_POSTED;",
                "next = has_completed ? IDLE : FLUSH_POSTED;",
            ),
            (
                "(state == FLUSH_RECEIVED && receive_ended && has_completed)",
                "((state == FLUSH_RECEIVED || state == FLUSH_ANSWERED) && receive_ended && has_completed)",
            ),
        ],
    },
    Plant {
        name: "commit-posted",
        says: "a report of a filled receive that comes behind the flush completes one that is posted",
        file: "balboa_sender",
        edits: &[(
            "takes_posted: state == FLUSH_RECEIVE,",
            "takes_posted: state != FLUSH_CLAIMED,",
        )],
    },
    Plant {
        name: "loss-untold",
        says: "the driver does not hear that a queue pair lost a completion",
        file: "balboa_sender",
        edits: &[
            ("        event_asks       = can_fail;\n", ""),
            ("can_fail ? FAIL_HEARD : IDLE;", "can_fail ? FAIL : IDLE;"),
        ],
    },
    Plant {
        name: "users-freed",
        says: "a queue is freed that is in use where the count of its users has flipped",
        file: "balboa_users",
        edits: &[("= count != '0 || is_flipped;", "= count != '0;")],
    },
    Plant {
        name: "users-ignored",
        says: "an engine goes on that could not count a user of a queue",
        file: "balboa_queues",
        edits: &[(" || has_lost_cq_users || has_lost_rq_users)", ")")],
    },
    Plant {
        name: "stop-serves",
        says: "an engine that stops places the bytes of peers",
        file: "balboa_engine",
        edits: &[("has_found_qp && !is_stopped;", "has_found_qp;")],
    },
    Plant {
        name: "stop-claims",
        says: "an engine that stops for a reset gives receives to messages",
        file: "balboa_receiver",
        edits: &[("if (aborts || stop) is_stopped", "if (aborts) is_stopped")],
    },
    Plant {
        name: "stop-early",
        says: "an engine that stops does not wait until the transport has forgotten all",
        file: "balboa_control",
        edits: &[("if (transport_quiet && is_at_rest)", "if (is_at_rest)")],
    },
    Plant {
        name: "stop-again",
        says: "an engine stops again before the transport has seen the end of the last stop",
        file: "balboa_control",
        edits: &[("if (!command_valid && !transport_quiet)", "if (!command_valid)")],
    },
    Plant {
        name: "stop-addresses",
        says: "the GID table stays over a reset",
        file: "balboa_control",
        edits: &[(
            "      if (stops) gid_valid <= '0;\n      else if (sets_gid)",
            "      if (sets_gid)",
        )],
    },
    Plant {
        name: "ring-end",
        says: "a queue is made in a ring whose last block is out of reach",
        file: "balboa_execute",
        edits: &[("memory      <= memory + (64'd64 << probed_log2);", "memory      <= memory;")],
    },
    Plant {
        name: "seed-again",
        says: "a later seed counts, too, while the engine stands still",
        file: "balboa_window",
        edits: &[("&& !is_seeded && !is_enabled;", "&& !is_enabled;")],
    },
    Plant {
        name: "refused-any",
        says: "a refused fault is that of the request whose turn it is",
        file: "balboa_refusal",
        edits: &[("is_of_note <= note - address < 48'(length);", "is_of_note <= 1'b1;")],
    },
    Plant {
        name: "refused-first",
        says: "a fault in the second page of a request is nobody's",
        file: "balboa_refusal",
        edits: &[("note - address < 48'(length);", "note == address && length != '0;")],
    },
    Plant {
        name: "refused-late",
        says: "completions of writes behind one whose fault is refused are lost while the note of it waits",
        file: "balboa_writes",
        edits: &[(
            "if (!rst_n || !is_under_way) ended",
            "if (!rst_n || !is_under_way || is_refused) ended",
        )],
    },
    Plant {
        name: "refused-taken",
        says: "a write whose fault is refused takes the completion of the next one",
        file: "balboa_writes",
        edits: &[("is_under_way && may_end && (cq_wr_valid", "is_under_way && (cq_wr_valid")],
    },
    Plant {
        name: "refused-kept",
        says: "what was told of a fault stays over a reset of the engine",
        file: "balboa_refusal",
        edits: &[("else if (is_refused || (clears && !is_under_way))", "else if (is_refused)")],
    },
    Plant {
        name: "counters-few",
        says: "a query of the counters answers with the first sixteen of them alone",
        file: "balboa_execute",
        edits: &[("is_of_counters && done.counters > 16'd16", "1'b0")],
    },
    Plant {
        name: "coyote-shifted",
        says: "a request's length stands a bit too low in the shell's record",
        file: "balboa_coyote_pkg",
        edits: &[("REQUEST_LENGTH = 27", "REQUEST_LENGTH = 26")],
    },
    Plant {
        name: "coyote-swapped",
        says: "completions are taken by the layout that the shell does not have",
        file: "balboa_coyote",
        edits: &[("Newer ? ACK_FLAGS : 0", "Newer ? 0 : ACK_FLAGS")],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_plant_has_a_name_of_its_own_and_fits_the_rtl() {
        let names: BTreeSet<_> = PLANTS.iter().map(|plant| plant.name).collect();
        assert_eq!(names.len(), PLANTS.len());
        for plant in PLANTS {
            plant.planted().unwrap();
        }
    }
}
