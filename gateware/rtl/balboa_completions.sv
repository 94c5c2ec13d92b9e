// The completion queues: entries with their phase, full queues, and the arming that raises an event.
module balboa_completions
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
(
    input  logic                             clk,
    input  logic                             rst_n,
    input  logic            [          63:0] timestamp,
    // The queue that is worked on: it is read, and stands from the next cycle on.
    output cq_place_t                        place,
    output logic                             reads_cq,
    output cq_place_t                        read_cq,
    input  cq_t                              cq,
    input  logic                             is_cq_there,
    // Its indices have flipped; that is told.
    output logic                             has_flip,
    input  logic                             tells_fault,
    // A queue begins anew; all end.
    input  logic                             starts,
    input  cq_place_t                        started,
    input  logic                             clears,
    // A completion.
    input  logic                             asks,
    input  completion_ask_t                  ask,
    output logic                             ended,
    // Whether it was lost, or there is no room to keep.
    output logic                             has_lost,
    // A queue pair ends without completions for which room is kept.
    input  logic                             releases,
    input  cq_place_t                        released_cq,
    input  logic            [RECEIVE_BITS:0] released,
    // The doorbell of a queue was rung: its arming is to be looked at.
    input  logic                             arms,
    input  cq_place_t                        armed_place,
    // A queue moves to another ring, with its arming; it stays where more entries wait to be consumed than that has, or room
    // is kept for more. It ends as a completion does.
    input  logic                             resizes,
    input  resize_ask_t                      resize_ask,
    output logic                             moves,
    output logic                             has_moved,
    output logic            [          31:0] moved_end,
    // A queue that has fired has to wait for its event; the event of one that waited is due.
    input  logic                             holds,
    output logic                             waits,
    output logic            [          29:0] fired_sequence,
    input  logic                             tells,
    input  cq_place_t                        told_place,
    input  logic            [          29:0] told_sequence,
    output logic                             is_idle,
    // The queue pair of a completion that is lost.
    output logic                             loses,
    output qp_place_t                        lost,
    output logic                             fatal,
    input  logic                             aborts,
    // Host memory.
    output logic                             block_asks,
    output block_ask_t                       block_ask,
    input  logic                             block_ended,
    input  logic                             block_failed,
    input  logic            [         511:0] block,
    // Events.
    output logic                             event_asks,
    output event_t                           event_ask,
    input  logic                             event_ended
);
  typedef enum logic [3:0] {
    IDLE,
    BEGIN,
    ROOM,
    WRITE,
    WRITTEN,
    TOLD,
    DONE,
    ARM,
    ARMED,
    TELL,
    RESIZE,
    RESIZED,
    RELEASE
  } state_t;

  typedef struct packed {
    logic        has_overrun;
    logic        has_solicited;
    logic [31:0] producer;
    // Behind the entries for which room is kept, too.
    logic [31:0] promised;
    logic [31:0] consumer;
    logic [1:0]  armed;
    logic [29:0] sequence_;
    // Behind the last entry that a client waits for that is armed for solicited ones.
    logic [31:0] solicited_end;
  } queue_t;

  state_t                           state;
  state_t                           next;
  completion_ask_t                  job;

  // Before this cycle, and behind it.
  queue_t                           q;
  queue_t                           q_next;
  logic                             was_read;
  logic                             is_kept_flipped;
  logic                             is_there;
  logic            [RECEIVE_BITS:0] released_now;

  // ---- A completion

  logic            [          31:0] entries;
  logic                             is_full;
  logic                             is_still_full;
  logic                             is_solicited;
  logic                             is_written;
  logic                             is_promised;
  logic                             wakes;

  assign place = job.cq;
  assign is_there = is_cq_there && !is_kept_flipped;
  assign reads_cq = asks || arms || tells || resizes || releases;
  always_comb begin
    read_cq = told_place;
    if (arms) read_cq = armed_place;
    if (resizes) read_cq = resize_ask.cq;
    if (releases) read_cq = released_cq;
    if (asks) read_cq = ask.cq;
  end
  assign entries = 32'd1 << cq.log2;
  assign is_full = q.promised - q.consumer >= entries;
  assign is_still_full = q.promised - block[31:0] >= entries;
  assign is_solicited = job.cqe.status != CQE_STATUS_SUCCESS || (job.cqe.flags & CQE_FLAGS_SOLICITED) != '0;
  assign is_written = state == WRITTEN && block_ended && !block_failed;
  assign wakes = q.armed == DOORBELL_ARM_CODE_ANY[1:0] || (q.armed == DOORBELL_ARM_CODE_SOLICITED[1:0] && is_solicited);

  // ---- Arming

  doorbell_completion_record_t        record;
  doorbell_arm_word_t                 arm;
  logic                        [29:0] armed_behind;
  logic                        [29:0] arm_behind;
  logic                               arms_any;
  logic                               is_for_any;
  logic                               is_new;
  logic                        [31:0] moved_entries;
  logic                               fires;

  assign record = doorbell_completion_record_t'(block);
  assign arm = doorbell_arm_word_t'(record.arm);
  assign arm_behind = arm.arm_sequence - q.sequence_;
  assign armed_behind = record.armed_for_any[29:0] - q.sequence_;
  // Of an arming for any completion that was not seen: behind the last one seen, up to this one.
  assign arms_any = armed_behind != '0 && armed_behind <= arm_behind;
  assign is_for_any = arm.kind == DOORBELL_ARM_CODE_ANY[1:0] || q.armed == DOORBELL_ARM_CODE_ANY[1:0] || arms_any;
  assign moved_entries = 32'd1 << resize_ask.log2;
  assign moves = state == RESIZED && block_ended && !block_failed && q.producer - block[31:0] <= moved_entries &&
      q.promised - q.producer <= moved_entries;
  assign is_new       = ((state == ARMED && block_ended) || moves) && !block_failed &&
      (arm.kind == DOORBELL_ARM_CODE_SOLICITED[1:0] || arm.kind == DOORBELL_ARM_CODE_ANY[1:0]) &&
      arm.arm_sequence != q.sequence_;
  // An entry of the kind waited for is there already.
  assign fires = is_for_any ? q.producer != arm.consumer : q.has_solicited && $signed(
      q.solicited_end - arm.consumer
  ) > 0;

  always_ff @(posedge clk) begin
    if (resizes) has_moved <= 1'b0;
    if (state == RESIZED && block_ended) begin
      has_moved <= moves;
      moved_end <= q.producer;
    end
  end

  // The sequence of the arming that an event is of.
  logic [29:0] sequence_told;

  always_comb begin
    fired_sequence = q.sequence_;
    if (state == ARMED || state == RESIZED) fired_sequence = arm.arm_sequence;
    if (state == TELL) fired_sequence = sequence_told;
  end

  // ---- One thing after the other

  assign ended = state == DONE || (state == TOLD && event_ended);
  assign is_idle = state == IDLE || ended;
  assign fatal = block_ended && block_failed &&
      (state == ROOM || state == WRITTEN || state == ARMED || state == RESIZED);
  assign lost = job.qp;

  always_comb begin
    next             = state;
    loses            = 1'b0;
    is_promised      = 1'b0;
    block_asks       = 1'b0;
    block_ask        = read_of(record_of(cq.ring));
    event_asks       = 1'b0;
    event_ask        = '0;
    event_ask.kind   = EVENT_TYPE_COMPLETION;
    event_ask.number = 32'(cq.number);
    event_ask.data   = 64'(fired_sequence);
    waits            = 1'b0;
    case (state)
      BEGIN: begin
        if (!is_there) begin
          loses = 1'b1;
          next  = DONE;
        end else if (job.is_kept) begin
          // Also of a queue that others have overrun since: it was not to be lost.
          next = WRITE;
        end else if (q.has_overrun) begin
          loses = 1'b1;
          next  = DONE;
        end else if (is_full) begin
          block_asks = 1'b1;
          next       = ROOM;
        end else begin
          is_promised = 1'b1;
          next        = job.keeps ? DONE : WRITE;
        end
      end
      ROOM: begin
        event_ask.kind = EVENT_TYPE_CQ_ERROR;
        event_ask.data = '0;
        if (block_ended && !block_failed) begin
          loses       = is_still_full;
          event_asks  = is_still_full;
          is_promised = !is_still_full;
          next        = job.keeps ? DONE : WRITE;
          if (is_still_full) next = TOLD;
        end
      end
      WRITE: begin
        block_asks               = 1'b1;
        block_ask.is_write       = 1'b1;
        block_ask.is_posted      = 1'b1;
        block_ask.address        = entry_of(entries_of(cq.ring), q.producer, cq.log2);
        block_ask.block          = job.cqe;
        block_ask.block[255:192] = timestamp;
        block_ask.block[511:504] = 8'(expected_phase(q.producer, cq.log2));
        next                     = WRITTEN;
      end
      WRITTEN: begin
        if (is_written) begin
          event_asks = wakes && !holds;
          waits      = wakes && holds;
          next       = event_asks ? TOLD : DONE;
        end
      end
      TOLD:    if (event_ended) next = IDLE;
      ARM: begin
        block_asks = is_there;
        next       = is_there ? ARMED : IDLE;
      end
      ARMED: begin
        if (block_ended) next = IDLE;
        if (is_new && fires) begin
          event_asks = !holds;
          waits      = holds;
          next       = event_asks ? TOLD : IDLE;
        end
      end
      RESIZE: begin
        block_asks = is_there;
        next       = is_there ? RESIZED : DONE;
      end
      RESIZED: begin
        if (block_ended) next = DONE;
        if (is_new && fires) begin
          event_asks = !holds;
          waits      = holds;
          next       = event_asks ? TOLD : DONE;
        end
      end
      TELL: begin
        event_asks = is_there;
        next       = is_there ? TOLD : IDLE;
      end
      default: next = IDLE;
    endcase
    if (asks) next = BEGIN;
    if (arms) next = ARM;
    if (tells) next = TELL;
    if (resizes) next = RESIZE;
    if (releases) next = RELEASE;
    if (fatal || aborts) next = IDLE;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) state <= IDLE;
    else state <= next;
  end

  always_ff @(posedge clk) begin
    if (asks) job <= ask;
    else if (arms) job.cq <= armed_place;
    else if (tells) job.cq <= told_place;
    else if (resizes) job.cq <= resize_ask.cq;
    else if (releases) job.cq <= released_cq;
    if (releases) released_now <= released;
    if (tells) sequence_told <= told_sequence;
  end

  always_ff @(posedge clk) begin
    if (asks) has_lost <= 1'b0;
    else if (loses) has_lost <= 1'b1;
  end

  // ---- Indices

  always_comb begin
    q_next = q;
    if (is_promised) q_next.promised = q.promised + 32'd1;
    if (state == RELEASE && is_there) q_next.promised = q.promised - 32'(released_now);
    if (state == ROOM && event_asks) q_next.has_overrun = 1'b1;
    if (state == ROOM && block_ended && !block_failed) q_next.consumer = block[31:0];
    if (is_written) begin
      q_next.producer = q.producer + 32'd1;
      if (wakes) q_next.armed = DOORBELL_ARM_CODE_NEVER[1:0];
      if (is_solicited) begin
        q_next.solicited_end = q.producer + 32'd1;
        q_next.has_solicited = 1'b1;
      end
    end
    if (is_new) begin
      q_next.sequence_ = arm.arm_sequence;
      if (fires) q_next.armed = DOORBELL_ARM_CODE_NEVER[1:0];
      else q_next.armed = is_for_any ? DOORBELL_ARM_CODE_ANY[1:0] : DOORBELL_ARM_CODE_SOLICITED[1:0];
    end
    if (moves) begin
      q_next.promised      = q.promised - q.producer;
      q_next.producer      = '0;
      q_next.consumer      = '0;
      // A later arming compares it with an index that is counted from there, too.
      q_next.solicited_end = q.solicited_end - q.producer;
    end
  end

  // A queue that begins is not armed, as zeros say.
  balboa_context #(
      .Width($bits(queue_t)),
      .Depth(CQ_PLACES)
  ) queues (
      .clk,
      .rst_n,
      .clears,
      .starts,
      .started,
      .reads     (reads_cq),
      .read      (read_cq),
      .place,
      .now       (q),
      .next      (q_next),
      .was_read,
      .is_flipped(is_kept_flipped)
  );

  always_ff @(posedge clk) begin
    if (!rst_n || clears) has_flip <= 1'b0;
    else if (was_read && is_cq_there && is_kept_flipped) has_flip <= 1'b1;
    else if (tells_fault) has_flip <= 1'b0;
  end
endmodule
