// Go, with the standard library alone: go run go.go RECORDING SERVER
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
)

func main() {
	recording, server := os.Args[1], os.Args[2]
	var answer struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(transcribe(recording, server, "json"), &answer); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("# json\n%s\n", answer.Text)
	fmt.Printf("# srt\n%s\n", transcribe(recording, server, "srt"))
	fmt.Printf("# vtt\n%s\n", transcribe(recording, server, "vtt"))
}

// The form goes through a pipe, so the recording is never in memory as a whole and the request has no Content-Length.
func transcribe(recording, server, format string) []byte {
	file, err := os.Open(recording)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	body, end := io.Pipe()
	form := multipart.NewWriter(end)
	go func() {
		part, _ := form.CreateFormFile("file", filepath.Base(recording))
		_, err := io.Copy(part, file)
		form.WriteField("model", "whisper-1")
		form.WriteField("response_format", format)
		form.Close()
		end.CloseWithError(err)
	}()
	response, err := http.Post(server+"/v1/audio/transcriptions", form.FormDataContentType(), body)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(response.Body); err != nil || response.StatusCode != http.StatusOK {
		log.Fatal(response.Status, answer.String(), err)
	}
	return answer.Bytes()
}
