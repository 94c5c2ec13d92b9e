// Starting and stopping the engine: its registers, the driver's rings, and the transport, which has to forget all.
module balboa_control
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_host_pkg::*;
(
    input  logic                          clk,
    input  logic                          rst_n,
    // Registers.
    input  logic                          write_valid,
    input  register_write_t               write,
    input  logic                   [15:0] read_address,
    output logic                   [63:0] read_data,
    input  logic                          overflow,
    output logic                   [63:0] timestamp,
    output logic                          admin_rings,
    output logic                   [31:0] admin_told,
    output logic                          consumes,
    output window_event_consumer_t        consumed,
    output logic                          clears_overflow,
    output logic                   [63:0] seed,
    output logic                          tells_refused,
    output window_fault_refused_t         refused,
    input  window_fault_notes_t           fault_notes,
    input  logic                   [63:0] payload_read,
    input  logic                   [63:0] payload_written,
    output logic                          rings,
    output logic                   [ 3:0] rung_page,
    output logic                   [ 6:0] rung_place,
    input  logic                          rings_nobody,
    output doorbell_queue_code_t          rung_kind,
    // The driver's rings, as they were when the engine was started; they begin anew.
    output logic                   [63:0] sq_base,
    output logic                   [ 4:0] sq_log2,
    output logic                   [63:0] ac_base,
    output logic                   [ 4:0] ac_log2,
    output logic                   [63:0] ev_base,
    output logic                   [ 4:0] ev_log2,
    // Unread events at which completions wait; 0 where they are lost at the end of the ring.
    output logic                   [31:0] ev_limit,
    output logic                          starts,
    // State.
    output logic                          is_enabled,
    output logic                          is_fatal,
    // All objects end; for a reset, or after a fatal error.
    output logic                          stops,
    output logic                          resets,
    // Something waits to be done, and its turn.
    output logic                          is_due,
    input  logic                          begins,
    output logic                          is_idle,
    // A ring is out of reach, or a table has flipped; of the ring of events, of which the driver can hear nothing more.
    input  logic                          fails,
    input  logic                          fails_silently,
    input  logic                          has_flip,
    // The transport is to forget all; it has, and nothing of before comes from it.
    output logic                          stop,
    input  logic                          transport_quiet,
    // A command is shown to it. Nothing is under way here.
    input  logic                          command_valid,
    input  logic                          is_at_rest,
    // The GID table.
    input  logic                          sets_gid,
    input  logic                   [ 3:0] set_gid,
    input  logic                          is_gid_set,
    output logic                   [15:0] gid_valid,
    // Host memory.
    output logic                          block_asks,
    output block_ask_t                    block_ask,
    input  logic                          block_ended,
    input  logic                          block_failed,
    // Events.
    output logic                          event_asks,
    output event_t                        event_ask,
    input  logic                          event_ended
);
  typedef enum logic [3:0] {
    IDLE,
    ENABLE_CHECK,
    ENABLE_PROBE,
    ENABLE_PROBED,
    STOP,
    STOPPING,
    STOPPED,
    FATAL,
    FATAL_TOLD
  } state_t;

  state_t state;
  state_t next;
  logic [31:0] fatal_code;
  logic wants_enable;
  logic wants_reset;

  // ---- The window

  logic [63:0] r_admin_sq_base;
  logic [63:0] r_admin_sq_size;
  logic [63:0] r_admin_cq_base;
  logic [63:0] r_admin_cq_size;
  logic [63:0] r_event_base;
  logic [63:0] r_event_size;
  logic [63:0] r_event_rings;
  logic [63:0] r_event_completions;
  logic enables;
  logic orders_reset;
  window_status_t status;

  always_comb begin
    status                = '0;
    // Until an ordered reset is done it is not: a driver that sees 0 may write its rings.
    status.enabled        = is_enabled || wants_reset;
    status.fatal          = is_fatal;
    status.fatal_code     = fatal_code;
    status.event_overflow = overflow;
  end

  balboa_window #(
      .Qps(QPS),
      .Cqs(CQS),
      .Rqs(RQS),
      .Keys(KEYS),
      .Capabilities(CAPABILITIES),
      .Log2Cq(LOG2_CQ),
      .Log2Sq(LOG2_SQ),
      .Log2Rq(LOG2_RQ),
      .MaxMessage(MAX_MESSAGE),
      .QpnBits(QPN_BITS),
      .QpnRandom(QPN_BITS - ROW_BITS)
  ) window (
      .clk,
      .rst_n,
      .write_valid,
      .write,
      .read_address,
      .read_data,
      .status,
      .timestamp,
      .admin_sq_base(r_admin_sq_base),
      .admin_sq_size(r_admin_sq_size),
      .admin_cq_base(r_admin_cq_base),
      .admin_cq_size(r_admin_cq_size),
      .event_base(r_event_base),
      .event_size(r_event_size),
      .event_rings(r_event_rings),
      .event_completions(r_event_completions),
      .clear_rings(stops),
      .seed,
      .is_enabled,
      .fault_notes,
      .payload_read,
      .payload_written,
      .enables,
      .resets(orders_reset),
      .admin_rings,
      .admin_producer(admin_told),
      .consumes,
      .consumed,
      .clears_overflow,
      .tells_refused,
      .refused,
      .rings,
      .rung_page,
      .rung_kind,
      .rung_place,
      .rings_nobody
  );

  always_ff @(posedge clk) begin
    if (!rst_n) timestamp <= '0;
    else timestamp <= timestamp + 64'(NANOSECONDS);
  end

  // ---- Blocks of the rings

  // Of which ring, and whether the last one.
  logic [1:0] probed_ring;
  logic probes_last;
  logic is_last_probe;
  logic [63:0] probed_base;
  logic [4:0] probed_log2;
  logic [63:0] probed;

  assign is_last_probe = probed_ring == 2'd2 && probes_last;
  assign probed = probes_last ? probed_base + (64'd64 << probed_log2) - 64'd64 : probed_base;
  always_comb begin
    case (probed_ring)
      2'd0: begin
        probed_base = sq_base;
        probed_log2 = sq_log2;
      end
      2'd1: begin
        probed_base = ac_base;
        probed_log2 = ac_log2;
      end
      default: begin
        probed_base = ev_base;
        probed_log2 = ev_log2;
      end
    endcase
  end

  always_ff @(posedge clk) begin
    if (state == ENABLE_CHECK) begin
      probed_ring <= '0;
      probes_last <= 1'b0;
    end else if (state == ENABLE_PROBED && block_ended) begin
      probed_ring <= probed_ring + 2'(probes_last);
      probes_last <= !probes_last;
    end
  end

  // ---- One thing after the other

  logic are_rings_sound;

  // Whether a ring can be there.
  function automatic logic is_place(input logic [63:0] address);
    return address[5:0] == '0 && is_reachable(address);
  endfunction

  assign are_rings_sound = r_admin_sq_size <= 64'(WINDOW_MAX_LOG2_ADMIN) &&
      r_admin_cq_size <= 64'(WINDOW_MAX_LOG2_ADMIN) && r_event_size <= 64'(WINDOW_MAX_LOG2_EVENTS) &&
      r_event_rings <= 64'd1 && is_place(
      r_admin_sq_base
  ) && is_place(
      r_admin_cq_base
  ) && is_place(
      r_event_base
  );
  assign is_fatal = fatal_code != '0;
  assign is_due = wants_reset || wants_enable;
  // While the transport forgets, its questions are answered.
  assign is_idle = state == IDLE || state == STOPPING;
  assign starts = state == ENABLE_PROBED && block_ended && is_last_probe;
  assign stop = state == STOPPING || state == STOPPED;
  assign stops = state == STOPPED;
  assign resets = wants_reset;

  always_comb begin
    next           = state;
    block_asks     = 1'b0;
    block_ask      = read_of(probed);
    event_asks     = state == FATAL;
    event_ask      = '0;
    event_ask.kind = EVENT_TYPE_FATAL;
    event_ask.code = fatal_code[7:0];
    case (state)
      // Each ring is where it can be, and its first and last blocks are there.
      ENABLE_CHECK:  next = are_rings_sound ? ENABLE_PROBE : IDLE;
      ENABLE_PROBE: begin
        block_asks = is_reachable(probed);
        next       = block_asks ? ENABLE_PROBED : IDLE;
      end
      ENABLE_PROBED: if (block_ended) next = block_failed || is_last_probe ? IDLE : ENABLE_PROBE;
      // A command that is shown is taken first, and the transport has seen the end of the last stop.
      STOP:          if (!command_valid && !transport_quiet) next = STOPPING;
      // The transport forgets all first.
      STOPPING:      if (transport_quiet && is_at_rest) next = STOPPED;
      FATAL:         next = FATAL_TOLD;
      FATAL_TOLD:    if (event_ended) next = STOP;
      default: begin
        next = IDLE;
        if (begins && wants_reset) next = STOP;
        else if (begins && !is_enabled && !is_fatal) next = ENABLE_CHECK;
      end
    endcase
    if (fails) next = FATAL;
    if (fails_silently) next = STOP;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state        <= IDLE;
      is_enabled   <= 1'b0;
      fatal_code   <= '0;
      wants_enable <= 1'b0;
      wants_reset  <= 1'b0;
      gid_valid    <= '0;
    end else begin
      state <= next;
      if (begins) wants_enable <= 1'b0;
      else if (enables) wants_enable <= 1'b1;
      if (stops) wants_reset <= 1'b0;
      else if (orders_reset) wants_reset <= 1'b1;
      if (starts) is_enabled <= !block_failed;
      else if (stops) is_enabled <= 1'b0;
      // After a fatal stop the code stays.
      if (fails || fails_silently) fatal_code <= has_flip ? WINDOW_FATAL_TABLE_FLIPPED : WINDOW_FATAL_RING_UNREACHABLE;
      else if (stops && wants_reset) fatal_code <= '0;
      if (stops) gid_valid <= '0;
      else if (sets_gid) gid_valid[set_gid] <= is_gid_set;
    end
  end

  always_ff @(posedge clk) begin
    if (state == ENABLE_CHECK) begin
      sq_base <= r_admin_sq_base;
      sq_log2 <= r_admin_sq_size[4:0];
      ac_base <= r_admin_cq_base;
      ac_log2 <= r_admin_cq_size[4:0];
      ev_base <= r_event_base;
      ev_log2 <= r_event_size[4:0];
      ev_limit <= r_event_completions < 64'd1 << r_event_size[4:0] ? r_event_completions[31:0] :
          32'd1 << r_event_size[4:0];
    end
  end
endmodule
