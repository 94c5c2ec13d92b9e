// What peers want of memory: the check of a whole message, and the bytes that come for it. Receives are not offered.
module balboa_remote
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_host_pkg::*;
  import balboa_port_pkg::*;
(
    input  logic                  clk,
    input  logic                  rst_n,
    // A question; one of them at a time.
    input  logic                  checks,
    input  port_check_t           check,
    input  logic                  places,
    input  port_transfer_t        place,
    input  logic                  claims,
    input  port_claim_t           claim,
    output logic                  is_idle,
    // Its queue pair.
    output logic                  finds,
    output logic           [23:0] find,
    input  logic                  has_found,
    input  qp_t                   found,
    // Keys.
    output logic                  key_asks,
    output key_ask_t              key_ask,
    input  logic                  key_open,
    input  logic           [63:0] key_iova,
    // Host memory.
    output logic                  write_valid,
    input  logic                  write_ready,
    output logic           [47:0] write_address,
    output logic           [27:0] write_length,
    output logic                  send_valid,
    input  logic                  send_ready,
    output host_beat_t            send,
    input  logic                  written,
    input  logic                  fault_valid,
    // The transport.
    output logic                  checked_valid,
    input  logic                  checked_ready,
    output port_checked_t         checked,
    output logic                  claimed_valid,
    input  logic                  claimed_ready,
    output port_claimed_t         claimed,
    input  logic                  beat_valid,
    output logic                  beat_ready,
    input  port_beat_t            beat,
    output logic                  placed_valid,
    input  logic                  placed_ready,
    output port_placed_t          placed
);
  typedef enum logic [3:0] {
    IDLE,
    CHECK,
    CHECK_KEY,
    CHECKED,
    PLACE,
    PLACE_KEY,
    PLACE_ASK,
    PLACE_DATA,
    PLACE_END,
    PLACE_DRAIN,
    PLACED,
    CLAIMED
  } state_t;

  state_t                state;
  port_check_t           k;
  port_transfer_t        t;
  port_tag_t             claim_tag;
  port_verdict_t         verdict;
  logic           [31:0] access;
  logic           [63:0] address;
  logic                  failed;
  logic                  out_valid;
  logic                  out_ready;
  port_beat_t            out;

  // ---- Bytes

  balboa_fifo #(
      .Width($bits(port_beat_t)),
      .Depth(4)
  ) beats (
      .clk,
      .rst_n,
      .in_valid(beat_valid),
      .in_ready(beat_ready),
      .in_data (beat),
      .out_valid,
      .out_ready,
      .out_data(out)
  );
  assign out_ready     = state == PLACE_DRAIN || (state == PLACE_DATA && send_ready);
  assign write_valid   = state == PLACE_ASK;
  assign write_address = address[47:0];
  assign write_length  = 28'(t.length);
  assign send_valid    = state == PLACE_DATA && out_valid;
  assign send          = '{last: out.last, keep: keep_of(28'(out.bytes)), data: out.data};

  // ---- Answers

  assign checked_valid = state == CHECKED;
  assign checked       = '{verdict: verdict, tag: k.tag};
  assign placed_valid  = state == PLACED;
  assign placed        = '{verdict: verdict, tag: t.tag};
  assign claimed_valid = state == CLAIMED;
  assign claimed       = '{capacity: '0, receive: '0, verdict: PORT_VERDICT_INVALID_REQUEST, tag: claim_tag};

  // ---- One thing after the other

  assign is_idle       = state == IDLE;
  assign finds         = state == CHECK || state == PLACE;
  assign find          = state == CHECK ? k.qpn : t.qpn;
  assign key_asks      = state == CHECK_KEY || state == PLACE_KEY;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state <= IDLE;
    end else begin
      case (state)
        CHECK: state <= has_found ? CHECK_KEY : CHECKED;
        CHECK_KEY: state <= CHECKED;
        CHECKED: if (checked_ready) state <= IDLE;
        PLACE:
        state <= has_found && t.payload == PORT_PAYLOAD_REMOTE && t.access == PORT_ACCESS_WRITE ? PLACE_KEY :
            PLACE_DRAIN;
        PLACE_KEY: state <= key_open ? PLACE_ASK : PLACE_DRAIN;
        PLACE_ASK: if (write_ready) state <= PLACE_DATA;
        PLACE_DATA: if (out_valid && send_ready && out.last) state <= PLACE_END;
        PLACE_END: if (written || failed) state <= PLACED;
        PLACE_DRAIN: if (out_valid && out.last) state <= PLACED;
        PLACED: if (placed_ready) state <= IDLE;
        CLAIMED: if (claimed_ready) state <= IDLE;
        default: begin
          if (checks) state <= CHECK;
          else if (places) state <= PLACE;
          else if (claims) state <= CLAIMED;
          else state <= IDLE;
        end
      endcase
    end
  end

  always_ff @(posedge clk) begin
    if (checks) k <= check;
    if (places) t <= place;
    if (claims) claim_tag <= claim.tag;
    if (write_valid) failed <= 1'b0;
    else if (fault_valid) failed <= 1'b1;
    case (state)
      CHECK: begin
        access         <= found.access;
        key_ask.key    <= k.rkey;
        key_ask.pdn    <= found.pdn;
        key_ask.va     <= k.address;
        key_ask.length <= k.length;
        key_ask.right  <= k.access == PORT_ACCESS_READ ? KEY_ACCESS_REMOTE_READ : KEY_ACCESS_REMOTE_WRITE;
        verdict        <= PORT_VERDICT_UNREACHABLE;
      end
      CHECK_KEY: begin
        // READ is not offered.
        if ((access & key_ask.right) == '0 || k.access == PORT_ACCESS_READ) verdict <= PORT_VERDICT_INVALID_REQUEST;
        else verdict <= key_ask.length == '0 || key_open ? PORT_VERDICT_DONE : PORT_VERDICT_DENIED;
      end
      PLACE: begin
        key_ask.key    <= t.rkey;
        key_ask.pdn    <= found.pdn;
        key_ask.va     <= t.address;
        key_ask.length <= 32'(t.length);
        key_ask.right  <= KEY_ACCESS_REMOTE_WRITE;
        verdict        <= PORT_VERDICT_UNREACHABLE;
      end
      PLACE_KEY: address <= key_iova;
      PLACE_END: if (!failed && written) verdict <= PORT_VERDICT_DONE;
      default:   ;
    endcase
  end
endmodule
