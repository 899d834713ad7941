# Ruby's Net::HTTP: ruby ruby.rb RECORDING SERVER
require "json"
require "net/http"

recording, server = ARGV

transcribe = lambda do |format|
  url = URI("#{server}/v1/audio/transcriptions")
  request = Net::HTTP::Post.new(url)
  request.set_form([["file", File.open(recording)], %w[model whisper-1], ["response_format", format]], "multipart/form-data")
  answer = Net::HTTP.start(url.host, url.port) { |connection| connection.request(request) }
  answer.value # raises unless the status is 2xx
  answer.body
end

puts "# json", JSON.parse(transcribe.("json"))["text"]
puts "# srt", transcribe.("srt")
puts "# vtt", transcribe.("vtt")
