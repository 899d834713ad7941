# Perl's LWP: perl perl.pl RECORDING SERVER
use strict;
use warnings;
use HTTP::Request::Common qw(POST);
use JSON::PP qw(decode_json);
use LWP::UserAgent;

my ($recording, $server) = @ARGV;

sub transcribe {
    my ($format) = @_;
    my $answer = LWP::UserAgent->new->request(
        POST "$server/v1/audio/transcriptions",
        Content_Type => "form-data",
        Content      => [file => [$recording], model => "whisper-1", response_format => $format]
    );
    die $answer->status_line, $answer->content unless $answer->is_success;
    return $answer->decoded_content;
}

print "# json\n", decode_json(transcribe("json"))->{text}, "\n";
print "# srt\n",  transcribe("srt"), "\n";
print "# vtt\n",  transcribe("vtt"), "\n";
