// The tables of queue pairs, completion queues and receive queues: what the driver's commands set. They are memories: what
// is asked for stands from the next cycle on, until something is asked there again. What has lost what it held is not there,
// and the engine fails (`has_flip`).
module balboa_queues
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_number_pkg::*;
#(
    // The vFPGA's number, which QPNs have above their random bits.
    parameter logic [3:0] Window = '0
) (
    input  logic             clk,
    input  logic             rst_n,
    // Decides the order in which numbers are drawn; held.
    input  logic      [63:0] seed,
    // The queue pair of a number; for the driver's commands, the other queues of that number, too.
    input  logic             finds,
    input  logic             finds_queues,
    input  logic      [23:0] find,
    output qp_place_t        finding_qp,
    output logic             has_qp,
    output qp_place_t        found_qp,
    output qp_t              found,
    output logic             has_cq,
    output cq_place_t        found_cq,
    output logic             is_cq_used,
    output logic             has_rq,
    output rq_place_t        found_rq,
    output logic             is_rq_used,
    // What is at places.
    input  logic             reads_qp,
    input  qp_place_t        read_qp,
    output qp_t              qp,
    output logic             is_qp_there,
    input  logic             reads_cq,
    input  cq_place_t        read_cq,
    output cq_t              cq,
    output logic             is_cq_there,
    input  logic             reads_rq,
    input  rq_place_t        read_rq,
    output rq_t              rq,
    output logic             is_rq_there,
    // A queue has flipped; that is told.
    output logic             has_flip,
    input  logic             tells_fault,
    // The queue pair that the transport gives room: its place stands in the same cycle, whether it is there in the next one.
    input  logic             gains,
    input  logic      [23:0] room_qpn,
    output logic             has_room_qp,
    output qp_place_t        room_qp,
    // A queue pair is written; whether it flushes what is posted to its own receive queue.
    output logic             writes_qp,
    output qp_place_t        written_qp,
    output rq_place_t        written_rq,
    output logic             is_flushing,
    // There is room for another queue; its place and its number stand while `is_drawn`. A number that is not to be drawn is
    // skipped.
    output logic             is_drawn,
    output logic             has_free_qp,
    output qp_place_t        free_qp,
    output logic      [23:0] new_qpn,
    input  logic             makes_qp,
    input  qp_t              made_qp,
    input  logic             skips_qp,
    output logic             has_free_cq,
    output cq_place_t        free_cq,
    output logic      [23:0] new_cqn,
    input  logic             makes_cq,
    input  cq_t              made_cq,
    input  logic             skips_cq,
    output logic             has_free_rq,
    output rq_place_t        free_rq,
    output logic      [23:0] new_rqn,
    input  logic             makes_rq,
    input  rq_t              made_rq,
    input  logic             skips_rq,
    // The queue pair that was read last changes, or goes to ERR.
    input  logic             changes_qp,
    input  qp_state_t        changed_state,
    input  logic      [31:0] changed_access,
    input  logic             changed_can_read,
    input  logic             changed_tells_drained,
    input  logic      [ 7:0] changed_generation,
    input  logic             breaks_qp,
    // The completion queue that was read last moves to another ring.
    input  logic             moves_cq,
    input  ring_t            moved_ring,
    input  logic      [ 4:0] moved_log2,
    // What was found ends.
    input  logic             ends_qp,
    input  logic             ends_cq,
    input  logic             ends_rq,
    // All end at once.
    input  logic             clears
);
  localparam int unsigned QP_USE_BITS = 20 - QP_BITS;
  localparam int unsigned CQ_USE_BITS = 24 - CQ_BITS;
  localparam int unsigned RQ_USE_BITS = 20 - RQ_BITS;

  typedef struct packed {
    logic is_valid;
    qp_t  qp;
  } qp_entry_t;

  // Of a queue pair what room needs.
  typedef struct packed {
    logic is_valid;
    logic [23:0] number;
  } room_entry_t;

  typedef logic [$clog2(LOG2_CQ+1)-1:0] log2_cq_t;

  // The row of its place stands in its number, too.
  typedef struct packed {
    logic               is_valid;
    logic [23:ROW_BITS] number;
    logic [7:0]         page;
    ring_t              ring;
    log2_cq_t           log2;
  } cq_entry_t;

  typedef struct packed {
    logic is_valid;
    rq_t  rq;
  } rq_entry_t;

  // ---- Numbers and places

  logic      [           63:0] qp_secret;
  logic      [           63:0] cq_secret;
  logic      [           63:0] rq_secret;
  logic      [           23:0] asked_number;
  cq_place_t                   find_cq;
  rq_place_t                   find_rq;
  qp_place_t                   at_qp;
  cq_place_t                   at_cq;
  rq_place_t                   at_rq;
  qp_place_t                   at_room;
  logic      [QP_USE_BITS-1:0] qp_uses;
  logic      [CQ_USE_BITS-1:0] cq_uses;
  logic      [RQ_USE_BITS-1:0] rq_uses;
  logic                        is_qp_drawn;
  logic                        is_cq_drawn;
  logic                        is_rq_drawn;
  logic      [            2:0] was_qp_taken;
  logic                        was_cq_taken;
  logic                        was_rq_taken;

  assign qp_secret = seed;
  assign cq_secret = {seed[15:0], seed[63:16]} ^ 64'h6a09_e667_f3bc_c908;
  assign rq_secret = {seed[31:0], seed[63:32]} ^ 64'hbb67_ae85_84ca_a73b;
  assign finding_qp = qp_place_t'(queue_plain_of({4'd0, find[19:0]}, qp_secret, 1'b1));
  assign find_cq = cq_place_t'(queue_plain_of(find, cq_secret, 1'b0));
  assign find_rq = rq_place_t'(queue_plain_of({4'd0, find[19:0]}, rq_secret, 1'b1));
  assign room_qp = qp_place_t'(queue_plain_of({4'd0, room_qpn[19:0]}, qp_secret, 1'b1));
  assign new_qpn = {Window, 20'(queue_number_of({4'd0, qp_uses, free_qp}, qp_secret, 1'b1))};
  assign new_cqn = queue_number_of({cq_uses, free_cq}, cq_secret, 1'b0);
  assign new_rqn = {Window, 20'(queue_number_of({4'd0, rq_uses, free_rq}, rq_secret, 1'b1))};
  assign is_drawn = (is_qp_drawn || !has_free_qp) && (is_cq_drawn || !has_free_cq) && (is_rq_drawn || !has_free_rq);

  balboa_places #(
      .Places (QP_PLACES),
      .Rest   (RESTING),
      .UseBits(QP_USE_BITS),
      .Looks  (3)
  ) qp_places (
      .clk,
      .rst_n,
      .clears,
      .has_room(has_free_qp),
      .is_ready(is_qp_drawn),
      .place(free_qp),
      .uses(qp_uses),
      .takes(makes_qp),
      .skips(skips_qp),
      .frees(ends_qp),
      .freed(found_qp),
      .looked({at_room, at_qp, found_qp}),
      .was_taken(was_qp_taken)
  );
  balboa_places #(
      .Places (CQ_PLACES),
      .Rest   (RESTING),
      .UseBits(CQ_USE_BITS)
  ) cq_places (
      .clk,
      .rst_n,
      .clears,
      .has_room(has_free_cq),
      .is_ready(is_cq_drawn),
      .place(free_cq),
      .uses(cq_uses),
      .takes(makes_cq),
      .skips(skips_cq),
      .frees(ends_cq),
      .freed(found_cq),
      .looked(at_cq),
      .was_taken(was_cq_taken)
  );
  balboa_places #(
      .Places (RQ_PLACES),
      .Rest   (RESTING),
      .UseBits(RQ_USE_BITS)
  ) rq_places (
      .clk,
      .rst_n,
      .clears,
      .has_room(has_free_rq),
      .is_ready(is_rq_drawn),
      .place(free_rq),
      .uses(rq_uses),
      .takes(makes_rq),
      .skips(skips_rq),
      .frees(ends_rq),
      .freed(found_rq),
      .looked(at_rq),
      .was_taken(was_rq_taken)
  );

  // ---- What is there

  qp_entry_t          found_entry;
  qp_entry_t          qp_entry;
  qp_entry_t          qp_write;
  cq_entry_t          cq_entry;
  cq_entry_t          cq_write;
  rq_entry_t          rq_entry;
  room_entry_t        room_entry;
  logic        [23:0] asked_room;
  logic        [ 6:0] flips;
  logic        [ 6:0] was_asked;
  logic               is_found_flipped;
  logic               is_qp_flipped;
  logic               is_cq_flipped;
  logic               is_rq_flipped;
  logic               is_room_flipped;
  logic               are_cq_users_flipped;
  logic               are_rq_users_flipped;
  logic               has_lost_cq_users;
  logic               has_lost_rq_users;

  // Those who work on a queue, and commands that look for one, have no need of the memory at the same time.
  assign found = found_entry.qp;
  assign has_qp = found_entry.is_valid && was_qp_taken[0] && !is_found_flipped && found.number == asked_number;
  assign qp = qp_entry.qp;
  assign is_qp_there = qp_entry.is_valid && was_qp_taken[1] && !is_qp_flipped;
  assign cq = '{
          number: {cq_entry.number, at_cq[ROW_BITS-1:0]},
          page: cq_entry.page,
          ring: cq_entry.ring,
          log2: 5'(cq_entry.log2)
      };
  assign is_cq_there = cq_entry.is_valid && was_cq_taken && !is_cq_flipped;
  assign rq = rq_entry.rq;
  assign is_rq_there = rq_entry.is_valid && was_rq_taken && !is_rq_flipped;
  assign found_cq = at_cq;
  assign has_cq = is_cq_there && cq.number == asked_number;
  assign found_rq = at_rq;
  assign has_rq = is_rq_there && rq.number == asked_number;
  assign has_room_qp = room_entry.is_valid && was_qp_taken[2] && !is_room_flipped && room_entry.number == asked_room;
  assign flips       = {
    are_rq_users_flipped,
    are_cq_users_flipped,
    is_rq_flipped,
    is_cq_flipped,
    is_room_flipped,
    is_qp_flipped,
    is_found_flipped
  } & {was_rq_taken, was_cq_taken, was_rq_taken, was_cq_taken, was_qp_taken};
  assign written_rq = qp_write.qp.rq;
  assign is_flushing = qp_write.qp.state == QP_STATE_ERR && !qp_write.qp.is_rq_shared && qp_write.is_valid;

  always_comb begin
    writes_qp  = makes_qp || changes_qp || breaks_qp || ends_qp;
    written_qp = at_qp;
    qp_write   = '{is_valid: 1'b1, qp: qp};
    if (changes_qp) begin
      qp_write.qp.state         = changed_state;
      qp_write.qp.access        = changed_access;
      qp_write.qp.can_read      = changed_can_read;
      qp_write.qp.tells_drained = changed_tells_drained;
      qp_write.qp.generation    = changed_generation;
    end
    if (breaks_qp) qp_write.qp.state = QP_STATE_ERR;
    if (makes_qp) begin
      written_qp  = free_qp;
      qp_write.qp = made_qp;
    end
    if (ends_qp) begin
      written_qp        = found_qp;
      qp_write.is_valid = 1'b0;
    end
  end

  always_comb begin
    cq_write          = cq_entry;
    cq_write.is_valid = !ends_cq;
    if (makes_cq) begin
      cq_write.number = made_cq.number[23:ROW_BITS];
      cq_write.page   = made_cq.page;
      cq_write.ring   = made_cq.ring;
      cq_write.log2   = log2_cq_t'(made_cq.log2);
    end
    if (moves_cq) begin
      cq_write.ring = moved_ring;
      cq_write.log2 = log2_cq_t'(moved_log2);
    end
  end

  // One memory for each who reads.
  balboa_table #(
      .Width($bits(qp_entry_t)),
      .Depth(QP_PLACES)
  ) qps_found (
      .clk,
      .write_enable (writes_qp),
      .write_address(written_qp),
      .write_data   (qp_write),
      .read_enable  (finds),
      .read_address (finding_qp),
      .read_data    (found_entry),
      .is_flipped   (is_found_flipped)
  );
  balboa_table #(
      .Width($bits(qp_entry_t)),
      .Depth(QP_PLACES)
  ) qps_read (
      .clk,
      .write_enable (writes_qp),
      .write_address(written_qp),
      .write_data   (qp_write),
      .read_enable  (reads_qp),
      .read_address (read_qp),
      .read_data    (qp_entry),
      .is_flipped   (is_qp_flipped)
  );
  balboa_table #(
      .Width($bits(room_entry_t)),
      .Depth(QP_PLACES)
  ) qps_room (
      .clk,
      .write_enable (writes_qp),
      .write_address(written_qp),
      .write_data   ({qp_write.is_valid, qp_write.qp.number}),
      .read_enable  (gains),
      .read_address (room_qp),
      .read_data    (room_entry),
      .is_flipped   (is_room_flipped)
  );
  balboa_table #(
      .Width($bits(cq_entry_t)),
      .Depth(CQ_PLACES)
  ) cqs (
      .clk,
      .write_enable (makes_cq || moves_cq || ends_cq),
      .write_address(makes_cq ? free_cq : at_cq),
      .write_data   (cq_write),
      .read_enable  (finds_queues || reads_cq),
      .read_address (finds_queues ? find_cq : read_cq),
      .read_data    (cq_entry),
      .is_flipped   (is_cq_flipped)
  );
  balboa_table #(
      .Width($bits(rq_entry_t)),
      .Depth(RQ_PLACES)
  ) rqs (
      .clk,
      .write_enable (makes_rq || ends_rq),
      .write_address(makes_rq ? free_rq : found_rq),
      .write_data   ({makes_rq, made_rq}),
      .read_enable  (finds_queues || reads_rq),
      .read_address (finds_queues ? find_rq : read_rq),
      .read_data    (rq_entry),
      .is_flipped   (is_rq_flipped)
  );

  always_ff @(posedge clk) begin
    if (finds) begin
      asked_number <= find;
      found_qp     <= finding_qp;
    end
    if (reads_qp) at_qp <= read_qp;
    if (gains) begin
      asked_room <= room_qpn;
      at_room    <= room_qp;
    end
    if (finds_queues || reads_cq) at_cq <= finds_queues ? find_cq : read_cq;
    if (finds_queues || reads_rq) at_rq <= finds_queues ? find_rq : read_rq;
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      was_asked <= '0;
      has_flip  <= 1'b0;
    end else begin
      was_asked <= {{2{finds_queues}}, finds_queues || reads_rq, finds_queues || reads_cq, gains, reads_qp, finds};
      if ((was_asked & flips) != '0 || has_lost_cq_users || has_lost_rq_users) has_flip <= 1'b1;
      else if (tells_fault) has_flip <= 1'b0;
    end
  end

  // ---- Users of queues: each queue of a queue pair that completes there, or receives there

  balboa_users #(
      .Places(CQ_PLACES),
      .Users (2 * QP_PLACES)
  ) cq_users (
      .clk,
      .rst_n,
      .asks(finds_queues),
      .asked(find_cq),
      .is_used(is_cq_used),
      .is_flipped(are_cq_users_flipped),
      .has_lost(has_lost_cq_users),
      .starts(makes_cq),
      .started(free_cq),
      .gains(makes_qp),
      .loses(ends_qp),
      .first(makes_qp ? made_qp.send_cq : found.send_cq),
      .second(makes_qp ? made_qp.receive_cq : found.receive_cq)
  );
  balboa_users #(
      .Places(RQ_PLACES),
      .Users (2 * QP_PLACES)
  ) rq_users (
      .clk,
      .rst_n,
      .asks(finds_queues),
      .asked(find_rq),
      .is_used(is_rq_used),
      .is_flipped(are_rq_users_flipped),
      .has_lost(has_lost_rq_users),
      .starts(makes_rq),
      .started(free_rq),
      .gains(makes_qp),
      .loses(ends_qp),
      .first(makes_qp ? made_qp.rq : found.rq),
      .second(makes_qp ? made_qp.rq : found.rq)
  );
endmodule
