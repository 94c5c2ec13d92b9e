// Host memory, as the parts of an engine reach it: blocks of rings, one at a time for all of them, and the transfers of
// entries and payload, of which many are under way.
module balboa_memory
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_host_pkg::*;
#(
    // log2 of the cycles in which host memory answers.
    parameter int unsigned PatienceBits = 30
) (
    input  logic                          clk,
    input  logic                          rst_n,
    input  logic                          clears,
    // Blocks: each part's question; one asks at a time.
    input  logic                          control_block_asks,
    input  block_ask_t                    control_block_ask,
    input  logic                          admin_block_asks,
    input  block_ask_t                    admin_block_ask,
    input  logic                          execute_block_asks,
    input  block_ask_t                    execute_block_ask,
    input  logic                          sender_block_asks,
    input  block_ask_t                    sender_block_ask,
    input  logic                          receiver_block_asks,
    input  block_ask_t                    receiver_block_ask,
    input  logic                          completions_block_asks,
    input  block_ask_t                    completions_block_ask,
    input  logic                          events_block_asks,
    input  block_ask_t                    events_block_ask,
    // A block waits for host memory, and payload may have its turn; it ends once that has had it.
    output logic                          block_waits,
    input  logic                          may_end,
    output logic                          block_ended,
    output logic                          block_failed,
    output logic                  [511:0] block,
    // A posted block is out of reach, or host memory does not answer; that is told.
    output logic                          has_write_fault,
    output logic                          has_expired,
    input  logic                          tells_fault,
    output logic                          is_writes_quiet,
    // Payload that leaves.
    input  logic                          gather_read_valid,
    output logic                          gather_read_ready,
    input  logic                  [ 47:0] gather_address,
    input  logic                  [ 27:0] gather_length,
    output logic                          gather_recv_valid,
    input  logic                          gather_recv_ready,
    output logic                          gather_fault,
    // Payload that comes.
    input  logic                          remote_write_valid,
    output logic                          remote_write_ready,
    input  logic                  [ 47:0] remote_address,
    input  logic                  [ 27:0] remote_length,
    input  logic                          remote_send_valid,
    output logic                          remote_send_ready,
    input  host_beat_t                    remote_send,
    output logic                          remote_written,
    output logic                          remote_fault,
    // Entries of send queues, and of receive queues.
    input  logic                          entries_read_valid,
    output logic                          entries_read_ready,
    input  logic                  [ 47:0] entries_address,
    input  logic                  [ 27:0] entries_length,
    output logic                          entries_recv_valid,
    input  logic                          entries_recv_ready,
    output logic                          entries_fault,
    input  logic                          receives_read_valid,
    output logic                          receives_read_ready,
    input  logic                  [ 47:0] receives_address,
    input  logic                  [ 27:0] receives_length,
    output logic                          receives_recv_valid,
    input  logic                          receives_recv_ready,
    output logic                          receives_fault,
    // The shell.
    output logic                          sq_rd_valid,
    input  logic                          sq_rd_ready,
    output host_request_t                 sq_rd,
    output logic                          sq_wr_valid,
    input  logic                          sq_wr_ready,
    output host_request_t                 sq_wr,
    input  logic                          cq_wr_valid,
    input  logic                          recv_valid,
    output logic                          recv_ready,
    input  host_beat_t                    recv,
    output logic                          send_valid,
    input  logic                          send_ready,
    output host_beat_t                    send,
    // The driver is about to refuse a fault; what it told that was not used.
    input  logic                          tells_refused,
    input  window_fault_refused_t         refused,
    output window_fault_notes_t           fault_notes,
    // Bytes of payload that passed on the streams since the shell's reset.
    output logic                  [ 63:0] payload_read,
    output logic                  [ 63:0] payload_written
);
  block_ask_t block_ask;
  logic [47:0] block_address;
  logic block_read_valid;
  logic block_read_ready;
  logic block_recv_valid;
  logic block_recv_ready;
  logic block_read_fault;
  logic block_write_valid;
  logic block_write_ready;
  logic block_is_posted;
  logic block_written;
  logic block_write_fault;
  logic has_read_note;
  logic has_write_note;
  logic [5:0] read_tail;
  logic read_expires;
  logic write_expires;

  always_comb begin
    fault_notes           = '0;
    fault_notes.has_read  = has_read_note;
    fault_notes.has_write = has_write_note;
  end

  always_comb begin
    block_ask = control_block_ask;
    if (admin_block_asks) block_ask = admin_block_ask;
    if (execute_block_asks) block_ask = execute_block_ask;
    if (sender_block_asks) block_ask = sender_block_ask;
    if (receiver_block_asks) block_ask = receiver_block_ask;
    if (completions_block_asks) block_ask = completions_block_ask;
    if (events_block_asks) block_ask = events_block_ask;
  end

  balboa_block blocks (
      .asks(
          control_block_asks || admin_block_asks || execute_block_asks || sender_block_asks || receiver_block_asks ||
          completions_block_asks || events_block_asks
      ),
      .ask(block_ask),
      .waits(block_waits),
      .ended(block_ended),
      .failed(block_failed),
      .address(block_address),
      .read_valid(block_read_valid),
      .read_ready(block_read_ready),
      .write_valid(block_write_valid),
      .write_ready(block_write_ready),
      .recv_valid(block_recv_valid),
      .recv_ready(block_recv_ready),
      .recv_data(recv.data),
      .is_posted(block_is_posted),
      .written(block_written),
      .fault_valid(block_read_fault || block_write_fault),
      .*
  );

  balboa_reads #(
      .PatienceBits(PatienceBits)
  ) reads (
      .block_valid(block_read_valid),
      .block_ready(block_read_ready),
      .block_fault(block_read_fault),
      .payload_valid(gather_read_valid),
      .payload_ready(gather_read_ready),
      .payload_address(gather_address),
      .payload_length(gather_length),
      .payload_recv_valid(gather_recv_valid),
      .payload_recv_ready(gather_recv_ready),
      .payload_fault(gather_fault),
      .entries_valid(entries_read_valid),
      .entries_ready(entries_read_ready),
      .receives_valid(receives_read_valid),
      .receives_ready(receives_read_ready),
      .recv_last(recv.last),
      .oldest_tail(read_tail),
      .tells_refused(tells_refused && !refused.is_write),
      .refused_address(refused.address),
      .has_note(has_read_note),
      .expires(read_expires),
      .*
  );

  balboa_writes #(
      .PatienceBits(PatienceBits)
  ) writes (
      .block_valid(block_write_valid),
      .block_ready(block_write_ready),
      .block_data(block),
      .has_fault(has_write_fault),
      .is_quiet(is_writes_quiet),
      .block_fault(block_write_fault),
      .payload_valid(remote_write_valid),
      .payload_ready(remote_write_ready),
      .payload_address(remote_address),
      .payload_length(remote_length),
      .payload_send_valid(remote_send_valid),
      .payload_send_ready(remote_send_ready),
      .payload_send(remote_send),
      .payload_written(remote_written),
      .payload_fault(remote_fault),
      .tells_refused(tells_refused && refused.is_write),
      .refused_address(refused.address),
      .has_note(has_write_note),
      .expires(write_expires),
      .*
  );

  // ---- Payload that passed

  logic       reads_payload;
  logic       writes_payload;
  logic [6:0] beat_read;
  logic [6:0] beat_written;

  // Of a beat from the host the length of its read says how many bytes count, of one to the host `keep` does.
  always_ff @(posedge clk) begin
    beat_read <= recv.last && read_tail != '0 ? 7'(read_tail) : 7'd64;
    beat_written <= 7'($countones(remote_send.keep));
    if (!rst_n) begin
      reads_payload   <= 1'b0;
      writes_payload  <= 1'b0;
      payload_read    <= '0;
      payload_written <= '0;
    end else begin
      reads_payload  <= gather_recv_valid && gather_recv_ready;
      writes_payload <= remote_send_valid && remote_send_ready;
      if (reads_payload) payload_read <= payload_read + 64'(beat_read);
      if (writes_payload) payload_written <= payload_written + 64'(beat_written);
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) has_expired <= 1'b0;
    else if (read_expires || write_expires) has_expired <= 1'b1;
    else if (tells_fault) has_expired <= 1'b0;
  end
endmodule
