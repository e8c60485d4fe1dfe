"""What a recorded run says when it is trained, sampled or graded again, with its own settings or with others."""
