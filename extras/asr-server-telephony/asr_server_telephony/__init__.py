"""The bridge from telephone systems to a server: Twilio, Asterisk and FreeSWITCH."""
